// One run: its progress, curves, sites, events, and what the server can see.

import { Actions } from "./actions.js";
import { load, of } from "./api.js";
import { Curves } from "./curves.js";
import { announce, el, say, section } from "./dom.js";
import { paced } from "./frames.js";
import { Events } from "./events.js";
import { badge, showBadge } from "./history.js";
import { Stream } from "./live.js";
import { Marks, MOST_COLUMNS } from "./marks.js";
import { ServerView } from "./server_view.js";
import { Progress } from "./progress.js";
import { isOver } from "./words.js";

const KINDS = [
  ...["clients", "started", "resumed", "exchange", "stage", "dropped", "blamed", "exchange-done", "exchange-failed"],
  ...["exchange-repeated", "figures", "warning", "log", "ended"],
];
const NO_EVENTS = 2 ** 31 - 1;
const PAUSE = 1000;
const MOST_FETCHED = 4000;
/** Rounds times sites: every event names all sites of a round, so those of a large run are not fetched. */

/** The panels of one run, updated while it runs; `members` shows what the sites do for it. */
export class Run {
  #stream = null;
  #over = false;
  #followed = false;
  #ended = false;
  #info = null;

  constructor(id, { isOperator, members, isAlone = false }) {
    Object.assign(this, { id, members, isAlone });
    this.state = badge();
    this.title = el(isAlone ? "h1" : "h2", {}, "…");
    this.reason = el("p", { class: "reason", hidden: true });
    this.promise = el("p", { class: "note", hidden: true });
    this.actions = isOperator ? new Actions(() => this.refresh()) : null;
    this.progress = new Progress();
    this.curves = new Curves();
    this.marks = new Marks();
    this.serverView = new ServerView();
    this.events = new Events();
    const head = el("header", { class: "run-head" }, el("div", {}, this.title, this.state), this.actions?.element);
    this.card = el("section", { class: "card", "aria-label": "Progress of the run" }, head, this.reason, this.progress.element, this.promise);
    this.settings = isAlone ? settings() : null;
    const panels = [this.card, this.curves.element, this.marks.element, this.serverView.element, this.events.element];
    this.element = el("div", { class: "run" }, ...panels, this.settings?.element);
    this.#pace();
    this.refresh();
  }

  #pace() {
    const see = (what, show, passed) => paced(() => load(of(this.id, what), show, passed), PAUSE);
    this.refreshers = {
      info: paced(() => load(of(this.id, `?after=${NO_EVENTS}`).replace("/?", "?"), (info) => this.#showInfo(info)), PAUSE),
      rounds: see("rounds", (rounds) => this.#showRounds(rounds)),
      marks: see(`marks?last=${MOST_COLUMNS}`, (marks) => this.marks.show(marks)),
      clients: see("clients", (standing) => this.#showClients(standing)),
      saw: paced(() => this.#fetchSaw(), PAUSE),
    };
  }

  /** Fetch everything again. */
  refresh() {
    for (const refresher of Object.values(this.refreshers)) refresher();
  }

  /** Follow a change of the theme. */
  redraw() {
    this.curves.redraw();
    this.marks.redraw();
  }

  end() {
    this.#ended = true;
    for (const refresher of Object.values(this.refreshers)) refresher.end();
    this.#stream?.end();
    this.curves.end();
    this.marks.end();
    this.progress.end();
  }

  async #fetchSaw() {
    const found = await load(of(this.id, "saw"), (seen) => this.#showSaw(seen), [404]);
    if (!found) this.#showSaw(this.seen ?? null);
  }

  #showSaw(seen) {
    this.seen = seen;
    this.serverView.show(seen, this.#info?.aggregation, this.survivors);
  }

  #showInfo(info) {
    this.#info = info;
    say(this.title, info.app);
    showBadge(this.state, info);
    this.reason.hidden = !info.reason;
    say(this.reason, info.reason);
    this.actions?.show(info);
    this.settings?.show(info);
    this.progress.info(info);
    this.serverView.show(this.seen ?? null, info.aggregation, this.survivors);
    const wasOver = this.#over;
    this.#over = isOver(info.status);
    if (this.#over) this.#leave();
    else if (wasOver) this.refreshers.rounds(); // it was resumed, and is followed again
  }

  #showRounds(rounds) {
    this.survivors = rounds.rounds.at(-1)?.survivors;
    this.progress.rounds(rounds);
    this.promise.hidden = !rounds.promise;
    say(this.promise, rounds.promise);
    this.actions?.rounds(rounds);
    this.curves.show(rounds);
    this.#follow(rounds);
  }

  #showClients(standing) {
    this.progress.stage(standing);
    this.members?.standings(standing.clients);
  }

  // Events from now on; of a small run, all that there were before, too.
  async #follow({ rounds, seq }) {
    if (this.#followed) return;
    this.#followed = true;
    const sites = rounds.at(-1)?.cohort ?? 0;
    const isSmall = rounds.length * sites <= MOST_FETCHED;
    if (isSmall) await this.events.fetch(this.id);
    if (this.#over || this.#ended) {
      this.#followed = false;
      return;
    }
    this.#stream?.end();
    const path = `${of(this.id, "live")}?after=${isSmall ? this.events.last : seq}`;
    this.#stream = new Stream(path, KINDS, (kind, recorded) => this.#hear(kind, recorded), () => this.refresh());
  }

  #leave() {
    this.#stream?.end();
    this.#followed = false; // it may be resumed
    this.#stream = null;
    this.progress.over();
    this.members?.standings([]);
  }

  #hear(kind, recorded) {
    const { event } = recorded;
    this.events.add(recorded);
    this.progress.hear(event);
    const { info, rounds, marks, clients, saw } = this.refreshers;
    if (kind === "dropped") announce(`${event.client} dropped out: ${event.reason}`, true);
    if (["exchange", "stage", "dropped", "blamed"].includes(kind)) [marks, clients].forEach((go) => go());
    if (kind === "stage" && event.stage === "input") saw();
    if (kind === "clients") clients();
    if (kind === "figures") rounds();
    if (["exchange-done", "exchange-failed", "exchange-repeated"].includes(kind)) {
      [info, rounds, marks, clients, saw].forEach((go) => go());
      if (kind === "exchange-done") announce(`Round ${event.server_round}: ${this.progress.said()}`);
    }
    if (["started", "resumed", "ended"].includes(kind)) this.refresh();
    if (kind === "ended") announce(`The run has ended: ${event.status}`, true);
  }
}

function settings() {
  const list = el("dl", { class: "facts" });
  const element = section("Settings", {}, list);
  const show = (info) => {
    const facts = { Run: info.run, App: info.app, "App's fingerprint (SHA-256)": info.app_sha256 };
    for (const [key, value] of Object.entries({ ...info.run_config, ...info.settings })) facts[key] = JSON.stringify(value);
    if (list.childElementCount) return;
    for (const [key, value] of Object.entries(facts)) list.append(el("div", {}, el("dt", {}, key), el("dd", {}, value)));
  };
  return { element, show };
}
