// All runs, the newest first.

import { load } from "./api.js";
import { el, keyed, say, section, table } from "./dom.js";
import { count, duration, number, STATUS, when } from "./words.js";

/** The panel of runs. `show` takes the newest; older ones are fetched when somebody asks. */
export class History {
  #newest = [];
  #older = [];

  constructor() {
    this.none = el("p", { class: "note" }, "No runs yet. An operator starts one with ", el("code", {}, "fedcore run"), ".");
    const made = table("Runs, the newest first", ["Run", "State", "App", "Rounds", "Started", "Duration", "Epsilon"]);
    this.body = made.body;
    this.whole = made.whole;
    this.more = el("button", { type: "button", class: "quiet", hidden: true, click: () => this.#fetchOlder() }, "Older runs");
    this.element = section("Runs", {}, this.none, this.whole, this.more);
  }

  /** Take the first page of runs. */
  show({ runs, more }) {
    this.#newest = runs;
    if (!this.#older.length) this.more.hidden = !more;
    this.#draw();
  }

  async #fetchOlder() {
    const last = [...this.#newest, ...this.#older].at(-1);
    await load(`v1/runs?before=${encodeURIComponent(last.run)}`, ({ runs, more }) => {
      this.#older.push(...runs);
      this.more.hidden = !more;
      this.#draw();
    });
  }

  #draw() {
    const known = new Set(this.#newest.map((run) => run.run));
    const runs = [...this.#newest, ...this.#older.filter((run) => !known.has(run.run))];
    this.none.hidden = runs.length > 0;
    this.whole.hidden = runs.length === 0;
    keyed(this.body, runs, (run) => run.run, row, update);
  }
}

function row(run) {
  const link = el("a", { href: `#run=${encodeURIComponent(run.run)}` }, run.run);
  const cells = [el("td", {}, badge()), el("td"), el("td"), el("td"), el("td"), el("td")];
  return el("tr", {}, el("th", { scope: "row" }, link), ...cells);
}

function update(made, run) {
  const [, state, app, rounds, begun, took, epsilon] = made.children;
  say(app, run.app + (run.aggregation === "plain" ? " (not protected)" : ""));
  showBadge(state.firstChild, run);
  say(rounds, number(run.rounds));
  say(begun, when(run.started_at ?? run.submitted_at));
  const ended = run.ended_at ? Date.parse(run.ended_at) - Date.parse(run.started_at ?? run.submitted_at) : null;
  say(took, ended === null ? "–" : duration(ended / 1000));
  say(epsilon, run.epsilon === null || run.epsilon === undefined ? "–" : number(run.epsilon));
}

/** An empty badge for a run's state. */
export function badge() {
  return el("span", { class: "badge" }, el("span", { class: "sign", "aria-hidden": "true" }), el("span"));
}

/** Say a run's state in a badge. */
export function showBadge(made, { status, position, reason }) {
  const [sign, words] = STATUS[status] ?? ["?", status];
  say(made.firstChild, sign);
  say(made.lastChild, position ? `${words}, ${place(position)}` : words);
  made.dataset.status = status;
  made.title = reason ?? "";
}

function place(position) {
  return position === 1 ? "next in the queue" : `behind ${count(position - 1, "other run")}`;
}
