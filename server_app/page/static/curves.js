// A curve for every metric, round by round: accuracy and loss first. Drawn by uPlot; the numbers are in a table, too.

import { el, keyed, say, section, table } from "./dom.js";
import { palette } from "./shapes.js";
import uPlot from "./vendor/uPlot.esm.js";
import { bytes, duration, metricName, number } from "./words.js";

const HEIGHT = 210;
const SOURCES = { evaluate: "on the sites' test data", server: "at the server", train: "while training" };

/** The metrics of these rounds: name, and for each source the values by round; accuracy and loss first. */
function curvesOf(rounds) {
  const found = new Map();
  for (const [at, round] of rounds.entries()) {
    for (const source of Object.keys(SOURCES)) {
      for (const [raw, value] of Object.entries(round[source] ?? {})) {
        if (typeof value !== "number" || raw.endsWith("/sums")) continue;
        const name = metricName(raw);
        if (!found.has(name)) found.set(name, new Map());
        const lines = found.get(name);
        const line = `${raw}\n${source}`;
        if (!lines.has(line)) lines.set(line, { source, values: new Array(rounds.length).fill(null) });
        lines.get(line).values[at] = Number.isFinite(value) ? value : null;
      }
    }
  }
  const rank = (name) => [/^acc/i, /^loss/i].findIndex((first) => first.test(name)) >>> 0;
  return [...found].map(([name, lines]) => ({ name, lines: [...lines.values()] })).sort((a, b) => rank(a.name) - rank(b.name) || a.name.localeCompare(b.name));
}

/** The panel of curves. */
export class Curves {
  #plots = new Map();
  #rounds = [];
  #budget = null;

  constructor() {
    this.none = el("p", { class: "note" }, "The curves begin with the first round.");
    this.grid = el("div", { class: "plots" });
    this.table = table("What each round gave", ["Round", "Sites in the sum", "Dropped", "Metrics", "Sent up", "Sent down", "Time"], { class: "rounds" });
    this.list = el("details", { toggle: () => this.#fillList() }, el("summary", {}, "The same as a table"), this.table.whole);
    this.element = section("How good the model is", {}, this.none, this.grid, this.list);
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(this.grid);
  }

  /** Take the server's rounds. */
  show({ rounds, privacy }) {
    this.#rounds = rounds;
    this.#budget = privacy?.epsilon_budget ?? null;
    this.none.hidden = rounds.length > 0;
    const curves = curvesOf(rounds);
    if (rounds.some((round) => round.epsilon !== null && round.epsilon !== undefined)) {
      const lines = [{ source: "spent", values: rounds.map((round) => round.epsilon ?? null) }];
      if (this.#budget) lines.push({ source: "budget", values: rounds.map(() => this.#budget) });
      curves.push({ name: "Privacy spent (epsilon)", lines });
    }
    keyed(this.grid, curves, (curve) => `${curve.name}:${curve.lines.map((line) => line.source)}`, (curve) => this.#make(curve), (figure, curve) => this.#update(figure, curve));
    this.#fillList();
  }

  /** Draw anew, after a change of the theme. */
  redraw() {
    const rounds = this.#rounds;
    this.#dispose();
    if (rounds.length) this.show({ rounds, privacy: { epsilon_budget: this.#budget } });
  }

  end() {
    this.observer.disconnect();
    this.#dispose();
  }

  #dispose() {
    for (const plot of this.#plots.values()) plot.destroy();
    this.#plots.clear();
    this.grid.replaceChildren();
  }

  #make(curve) {
    const latest = el("strong");
    const held = el("div", { class: "plot", "aria-hidden": "true" });
    const heading = el("h3", {}, curve.name);
    return el("figure", {}, el("figcaption", {}, heading, latest), held);
  }

  #update(figure, curve) {
    const values = curve.lines[0].values.filter((value) => value !== null);
    say(figure.querySelector("strong"), number(values.at(-1)));
    const data = [this.#rounds.map((round) => round.round), ...curve.lines.map((line) => line.values)];
    const plot = this.#plots.get(figure.dataset.key);
    if (plot && figure.contains(plot.root)) plot.setData(data);
    else this.#draw(figure, curve, data);
  }

  #draw(figure, curve, data) {
    const held = figure.querySelector(".plot");
    // In the next frame its width is known.
    requestAnimationFrame(() => {
      if (!figure.isConnected || this.#plots.has(figure.dataset.key)) return;
      const plot = new uPlot(options(curve, held.clientWidth || 300), data, held);
      plot.over.addEventListener("mouseleave", () => nameLatest(plot));
      this.#plots.set(figure.dataset.key, plot);
    });
  }

  #resize() {
    for (const plot of this.#plots.values()) {
      const width = plot.root.parentElement?.clientWidth;
      if (width && Math.abs(width - plot.width) > 1) plot.setSize({ width, height: HEIGHT });
    }
  }

  #fillList() {
    if (!this.list.open) return;
    const make = () => el("tr", {}, el("th", { scope: "row" }), ...Array.from({ length: 6 }, () => el("td")));
    keyed(this.table.body, [...this.#rounds].reverse(), (round) => round.round, make, (row, round) => {
      const metrics = { ...round.train, ...round.server, ...round.evaluate };
      const words = Object.entries(metrics)
        .filter(([name, value]) => typeof value === "number" && !name.endsWith("/sums"))
        .map(([name, value]) => `${name} ${number(value)}`);
      const cells = [round.round, `${round.survivors} of ${round.cohort}`, round.dropped, words.join(", ") || "–", bytes(round.up), bytes(round.down), duration(round.seconds)];
      cells.forEach((text, i) => say(row.children[i], String(text)));
    });
  }
}

// The legend has the newest values while the pointer is elsewhere.
function nameLatest(plot) {
  plot.setLegend({ idx: plot.data[0].length - 1 });
}

function options(curve, width) {
  const colours = palette();
  const font = "12px system-ui, sans-serif";
  const axis = { stroke: colours.muted, font, grid: { stroke: colours.line, width: 1 }, ticks: { show: false } };
  const strokes = { evaluate: colours.accent, spent: colours.accent, train: colours.muted, budget: colours.warn };
  const labels = { ...SOURCES, spent: "spent", budget: "budget" };
  return {
    width,
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    scales: { x: { time: false, range: (_, low, high) => [low, Math.max(high, low + 1)] }, y: { range: (_, low, high) => wholeRange(low, high) } },
    axes: [
      { ...axis, grid: { show: false }, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] },
      { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => number(tick)) },
    ],
    legend: { live: true },
    hooks: { draw: [(plot) => queueMicrotask(() => (plot.cursor.left ?? -1) < 0 && nameLatest(plot))] },
    cursor: { y: false, drag: { x: false, y: false } },
    series: [
      { label: "Round" },
      ...curve.lines.map(({ source }) => ({
        label: labels[source],
        stroke: strokes[source],
        width: source === "budget" ? 1.5 : 2,
        dash: source === "train" ? [5, 4] : source === "budget" ? [2, 3] : undefined,
        points: { show: source !== "budget" && curve.lines[0].values.length <= 40, size: 5, fill: source === "train" ? colours.surface : strokes[source] },
        spanGaps: true,
        value: (_, value) => number(value),
      })),
    ],
  };
}

// The whole curve, first values included, with a little room above and below; never a flat line on an edge.
function wholeRange(low, high) {
  if (low === null || low === undefined) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  const floor = low >= 0 ? Math.max(0, low - room) : low - room;
  return [floor, high + room];
}
