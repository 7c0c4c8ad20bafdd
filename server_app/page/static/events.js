// Events of a run in sentences: who dropped out and why, retries, warnings, and output of the app.

import { load, of } from "./api.js";
import { el, section } from "./dom.js";
import { duration, STATUS } from "./words.js";

const KEPT = 200;
const WORDS = {
  started: (event) => `The run began${event.rounds ? `, with ${event.rounds} rounds planned` : ""}.`,
  resumed: (event) => `The run resumed: ${event.why}`,
  dropped: (event) => `${event.client} dropped out during ${event.stage}: ${event.reason}`,
  blamed: (event) => `${event.client} violated the protocol during ${event.stage} (${event.reason}) and is excluded from this run.`,
  "exchange-failed": (event) => `Round ${event.server_round} failed: ${event.reason}; ${event.retry ? "retrying" : "not retried"}.`,
  "exchange-repeated": (event) => `Round ${event.server_round} is repeated: ${repeated(event)}.`,
  warning: (event) => event.line,
  log: (event) => `The app says: ${event.line}`,
  ended: (event) => `The run ended: ${STATUS[event.status]?.[1] ?? event.status}${event.reason ? `, ${event.reason}` : ""}.`,
};
const repeated = ({ coarse, large, survivors }) =>
  coarse ? `too much of the update of ${coarse} would be rounding error` : `the updates of ${large} of ${survivors} sites were larger than expected`;
const SIGNS = { dropped: "✕", blamed: "◆", "exchange-failed": "✕", warning: "!", ended: "■" };

/** The panel of events. last: number of the newest event that it has. */
export class Events {
  #seen = new Set();
  last = 0;

  constructor() {
    this.none = el("p", { class: "note" }, "No events worth noting.");
    this.list = el("ol", { class: "happened", tabindex: "0", "aria-label": "What happened, the newest first" });
    this.element = section("What happened", {}, this.none, this.list);
  }

  /** Fetch what happened before now. */
  async fetch(run) {
    await load(`${of(run)}?after=${this.last}`, ({ events }) => events.forEach((recorded) => this.add(recorded)));
  }

  /** Take one event; those without a sentence are ignored. */
  add(recorded) {
    const { seq, seconds, event } = recorded;
    this.last = Math.max(this.last, seq);
    const words = WORDS[event.kind]?.(event);
    if (!words || this.#seen.has(seq)) return;
    this.#seen.add(seq);
    this.none.hidden = true;
    const sign = el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[event.kind] ?? "·");
    const item = el("li", { "data-kind": event.kind, "data-seq": seq }, sign, el("span", {}, words), el("time", {}, `after ${duration(seconds)}`));
    const after = [...this.list.children].find((other) => Number(other.dataset.seq) < seq);
    this.list.insertBefore(item, after ?? null);
    if (this.list.childElementCount > KEPT) this.list.lastChild.remove();
  }
}
