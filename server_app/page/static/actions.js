// Actions of an operator on a run. Each asks for confirmation and says what will happen.

import { ask, of, Problem } from "./api.js";
import { confirm, tell } from "./dialog.js";
import { el } from "./dom.js";
import { isOver } from "./words.js";

const STOP = [
  "The run ends now and the open exchange is abandoned: nothing of it is unmasked.",
  "The model of the last complete round is kept as a checkpoint, and the run can be resumed later.",
];
const RESUME = [
  "The run continues after its last exchange, with the same app and the same settings.",
  "It waits in the queue while another run is in progress.",
];
const AGAIN = [
  "A new run starts with the same app, the same settings and the same initial model. This one is not changed.",
  "Each site's owner still decides, by that site's rules, whether it takes part.",
];

async function act(run, what, title, text, yes, then) {
  if (!(await confirm(title, text, yes))) return;
  try {
    const answer = await ask("POST", of(run, what));
    then(answer);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    await tell("The action failed", error.message);
  }
}

/** Open a run's own page. */
export function open(run) {
  location.hash = `run=${encodeURIComponent(run)}`;
}

/** The buttons of a run, for an operator; `changed` is called after one has done something. */
export class Actions {
  constructor(changed) {
    const button = (text, click) => el("button", { type: "button", hidden: true, click }, text);
    this.stop = button("Stop …", () => act(this.run, "cancel", "Stop this run?", STOP, "Stop the run", changed));
    this.resume = button("Resume …", () => act(this.run, "resume", "Resume this run?", RESUME, "Resume", changed));
    this.again = button("Run again …", () => act(this.run, "again", "Submit this run again?", AGAIN, "Submit again", (made) => open(made.run)));
    this.model = el("a", { class: "button", download: "", hidden: true }, "Download the model");
    this.best = el("a", { class: "button", download: "", hidden: true }, "Download the best model");
    this.element = el("div", { class: "buttons" }, this.stop, this.resume, this.again, this.model, this.best);
  }

  /** Follow a run's state. */
  show({ run, status, model, settings }) {
    this.run = run;
    this.metric = (settings?.["best-model"] ?? "").replace(/:(max|min)$/, "");
    this.stop.hidden = isOver(status);
    this.resume.hidden = !["failed", "cancelled", "interrupted"].includes(status);
    this.again.hidden = !isOver(status);
    this.model.hidden = !model;
    this.model.href = of(run, "model");
    this.model.textContent = status === "finished" ? "Download the model" : "Download the checkpoint";
    this.best.href = `${of(run, "model")}?which=best`;
    this.#showBest();
  }

  /** Take the rounds so far: there is a best model as soon as one was evaluated by its metric. */
  rounds({ rounds }) {
    this.evaluated = rounds.some((round) => typeof round.evaluate[this.metric] === "number");
    this.#showBest();
  }

  #showBest() {
    this.best.hidden = !(this.metric && this.evaluated);
    this.best.title = this.metric ? `by ${this.metric}` : "";
  }
}
