// Progress of a run in large letters: round, step, time left, bytes and privacy spent.

import { el, say } from "./dom.js";
import { bytes, count, duration, isOver, number, stageText, timeLeft } from "./words.js";

/** The upper part of a run's panel. */
export class Progress {
  #rounds = { rounds: [], up: 0, down: 0, planned: null, privacy: null };
  #open = { exchange: 0, round: 0, kind: "", stage: "", done: 0, expected: 0, groups: 1 };
  #info = null;

  constructor() {
    this.round = el("p", { class: "round" });
    this.bar = el("progress", { "aria-label": "Completed rounds", max: 1, value: 0 });
    this.step = el("p", { class: "step" });
    this.left = el("p", { class: "note" });
    this.facts = new Map();
    this.list = el("dl", { class: "figures" });
    for (const name of ["Protection", "Sent by the sites", "Sent to the sites", "Privacy spent"]) this.#fact(name);
    this.meter = el("meter", { min: 0, "aria-label": "Privacy spent, of the budget", hidden: true });
    this.facts.get("Privacy spent").parentElement.append(this.meter);
    this.element = el("div", { class: "standing" }, el("div", { class: "progress" }, this.round, this.bar, this.step, this.left), this.list);
    this.timer = setInterval(() => this.#draw(), 5000); // the time that is left grows less by itself
  }

  end() {
    clearInterval(this.timer);
  }

  #fact(name) {
    const value = el("span");
    this.facts.set(name, value);
    this.list.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  }

  info(info) {
    this.#info = info;
    this.#draw();
  }

  rounds(rounds) {
    this.#rounds = rounds;
    this.#draw();
  }

  /** What is open, as the server says it when asked. */
  stage({ exchange, server_round: round, stage, groups }) {
    if (exchange !== this.#open.exchange || stage !== this.#open.stage) {
      const kind = exchange === this.#open.exchange ? this.#open.kind : "";
      this.#open = { exchange, round, kind, stage, done: 0, expected: 0, groups };
      this.#draw();
    }
  }

  /** What is open, as events tell it. */
  hear(event) {
    if (event.kind === "exchange") {
      this.#open = { exchange: event.exchange, round: event.server_round, kind: event.message_type, stage: "", done: 0, expected: event.cohort.length, groups: event.groups ?? 1 };
    } else if (event.kind === "stage") {
      this.#open = { ...this.#open, exchange: event.exchange, stage: event.stage, done: event.done, expected: event.expected };
    } else if (event.kind.startsWith("exchange-")) {
      this.#open = { ...this.#open, exchange: 0, stage: "", groups: 1 };
    } else return;
    this.#draw();
  }

  over() {
    clearInterval(this.timer);
    this.#open = { exchange: 0, round: 0, kind: "", stage: "", done: 0, expected: 0, groups: 1 };
    this.#draw();
  }

  /** The round and the step in one sentence. */
  said() {
    return `${this.round.textContent}. ${this.step.textContent}`;
  }

  #draw() {
    const { rounds, planned, privacy } = this.#rounds;
    const last = rounds.at(-1)?.round ?? 0;
    const ended = this.#info && isOver(this.#info.status);
    const now = ended ? last : Math.max(this.#open.round, last, 1);
    const waits = this.#info?.status === "waiting";
    const of = planned ? ` of ${planned}` : "";
    const groups = this.#open.groups > 1 ? `, in ${this.#open.groups} groups` : "";
    say(this.round, waits ? "Not started" : ended ? count(last, "round") + of : `Round ${now}${of}${groups}`);
    this.bar.max = planned || Math.max(last, 1);
    this.bar.value = Math.min(last, this.bar.max);
    this.bar.hidden = !planned;
    say(this.step, ended ? "" : this.#stepText());
    const left = ended ? null : timeLeft(rounds, planned);
    say(this.left, left === null ? "" : `About ${duration(left)} left, if rounds take as long as the last ones did.`);
    this.#drawFacts(rounds, privacy);
  }

  #stepText() {
    if (this.#info?.status === "waiting") return "Waiting in the queue, or for enough sites.";
    const { stage, kind, done, expected } = this.#open;
    if (!this.#open.exchange) return stageText("", "");
    const counted = expected ? ` (${done} of ${expected})` : "";
    return stageText(stage || "advertise", kind) + counted;
  }

  #drawFacts(rounds, privacy) {
    const { up, down } = this.#rounds;
    say(this.facts.get("Protection"), this.#info?.aggregation === "plain" ? "none: updates are readable" : "secure aggregation");
    say(this.facts.get("Sent by the sites"), bytes(up));
    say(this.facts.get("Sent to the sites"), bytes(down));
    const spent = rounds.findLast((round) => typeof round.epsilon === "number")?.epsilon ?? this.#info?.epsilon ?? 0;
    const budget = privacy?.epsilon_budget;
    say(this.facts.get("Privacy spent"), privacy ? `epsilon ${number(spent)}${budget ? ` of ${number(budget)}` : ", no budget"}` : "none: no noise was added");
    this.meter.hidden = !budget;
    if (budget) [this.meter.max, this.meter.value, this.meter.high] = [budget, Math.min(spent, budget), 0.9 * budget];
  }
}
