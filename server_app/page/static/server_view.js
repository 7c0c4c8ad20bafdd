// What the server can see: one masked update as it was received, and the mean that the sites agreed to reveal.

import { el, keyed, say, section } from "./dom.js";
import { count, number } from "./words.js";

/** The panel. `show` takes the server's answer, or null where there is none. */
export class ServerView {
  constructor() {
    this.one = strip();
    this.all = strip();
    this.mean = strip();
    this.oneTitle = el("h3");
    this.meanTitle = el("h3");
    this.none = el("p", { class: "note" });
    this.numbers = el("pre", { tabindex: "0", "aria-label": "The numbers" });
    this.shown = el(
      "div",
      { class: "saw-columns" },
      el(
        "div",
        {},
        this.oneTitle,
        this.one,
        el("p", { class: "note" }, "To this server these numbers are random: it cannot read the update of a single site."),
      ),
      el("div", {}, el("h3", {}, "Sum of all updates, still masked"), this.all, el("p", { class: "note" }, "The masks cancel only in the sum over all sites.")),
      el("div", {}, this.meanTitle, this.mean, el("p", { class: "note" }, "This is all that the server learns about the model.")),
    );
    this.why = el(
      "p",
      { class: "lede" },
      "Before an update leaves a site, the site adds secret numbers (masks) that it has agreed on with other sites. They cancel out when all updates are added up, so the server can read the sum but no single update.",
    );
    this.list = el("details", {}, el("summary", {}, "The numbers"), this.numbers);
    this.element = section("What the server can see", { class: "saw" }, this.why, this.shown, this.list, this.none);
  }

  /** aggregation: "plain" if updates are not protected, which the page must say. */
  show(seen, aggregation, sites) {
    const isPlain = aggregation === "plain";
    this.element.classList.toggle("plain", isPlain);
    this.why.hidden = isPlain;
    this.shown.hidden = this.list.hidden = !seen || isPlain;
    this.none.hidden = Boolean(seen) && !isPlain;
    if (isPlain) {
      say(this.none, "This run is not protected by secure aggregation: the server can read the update of every single site. The owners of the sites have allowed this.");
    } else if (!seen) {
      say(this.none, "Part of one masked update appears here once the server has received one. It is kept only for the newest exchange, so a run that has ended may show none.");
    } else {
      this.#fill(seen, sites);
    }
  }

  #fill(seen, sites) {
    say(this.oneTitle, `Received from ${seen.client}`);
    say(this.meanTitle, sites ? `The mean of ${count(sites, "site")}` : "The mean of all sites");
    const top = 2 ** seen.bits;
    bars(this.one, seen.words.map((word) => word / top), `${seen.words.length} masked numbers without a pattern`);
    bars(this.all, seen.sum.map((word) => word / top), `${seen.sum.length} numbers of the masked sum, without a pattern`);
    const most = Math.max(...seen.mean.map(Math.abs), 1e-30);
    bars(this.mean, seen.mean.map((value) => 0.5 + value / most / 2), `The first ${seen.mean.length} numbers of the mean`, true);
    const line = (name, values) => `${name}\n${values.map(number).join("  ")}\n`;
    say(this.numbers, line(`${seen.client}, masked (${seen.bits} bits each)`, seen.words) + line("sum, masked", seen.sum) + line("mean", seen.mean));
  }
}

function strip() {
  return el("div", { class: "strip", role: "img" });
}

// heights: 0 to 1. signed: bars that begin in the middle.
function bars(host, heights, label, signed = false) {
  host.setAttribute("aria-label", label);
  host.classList.toggle("signed", signed);
  const items = heights.map((height, at) => ({ at, height }));
  keyed(host, items, (item) => item.at, () => el("i"), (bar, { height }) => {
    const [low, high] = signed ? [Math.min(height, 0.5), Math.max(height, 0.5)] : [0, height];
    bar.style.setProperty("--low", `${100 * low}%`);
    bar.style.setProperty("--size", `${Math.max(100 * (high - low), 2)}%`);
  });
}
