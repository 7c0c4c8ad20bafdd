// The overview page: the federation in a sentence, the current or last run, the members, and all runs.

import { load } from "./api.js";
import { el, say } from "./dom.js";
import { History } from "./history.js";
import { Stream } from "./live.js";
import { Members } from "./members.js";
import { Run } from "./run.js";

const TOGETHER = "The sites below train one model together. Their data never leaves them: each sends what its training changed";
const LEDES = {
  secure: `${TOGETHER}, masked with secret numbers, and this server learns only the sum over many sites.`,
  plain: `${TOGETHER}. The run below is not protected by secure aggregation: this server can read the update of every single site.`,
};

/** The overview; `end` stops what keeps it up. */
export class Overview {
  #shown = null;

  constructor({ isOperator, federation }) {
    this.isOperator = isOperator;
    this.title = el("h1", {}, federation);
    this.lede = el("p", { class: "lede" }, `${TOGETHER}.`); // how that is protected is a matter of each run
    this.held = el("div");
    this.members = new Members();
    this.history = new History();
    this.element = el("div", {}, this.title, this.lede, this.held, this.members.element, this.history.element);
    this.stream = new Stream("v1/live", ["runs", "clients"], (kind, data) => this.#hear(kind, data), () => this.#fetch());
    this.#fetch();
  }

  redraw() {
    this.#shown?.redraw();
  }

  end() {
    this.stream.end();
    this.#shown?.end();
  }

  #fetch() {
    load("v1/runs", (runs) => this.#showRuns(runs));
    load("v1/clients", (clients) => this.members.members(clients));
  }

  #hear(kind, data) {
    if (kind === "runs") this.#showRuns(data);
    else this.members.members(data);
  }

  #showRuns(runs) {
    this.history.show(runs);
    const wanted = runs.runs.find((run) => run.status === "running") ?? runs.runs[0];
    if (wanted && wanted.run !== this.#shown?.id) {
      this.#shown?.end();
      this.#shown = new Run(wanted.run, { isOperator: this.isOperator, members: this.members });
      this.held.replaceChildren(el("p", { class: "over-title" }), this.#shown.element);
    }
    if (wanted) say(this.lede, LEDES[wanted.aggregation] ?? `${TOGETHER}.`);
    if (wanted) say(this.held.firstChild, { running: "In progress", waiting: "Next" }[wanted.status] ?? "Last run");
    if (wanted && wanted.status !== this.status) this.#shown.refresh();
    this.status = wanted?.status;
  }
}
