// A row of marks for each site, a column for each exchange, after figure 5 of Bonawitz et al. (2019, "Towards Federated
// Learning at Scale"). Only the rows that are in view are drawn, so that a thousand sites cost what thirty do.

import { el, keyed, say, section, table } from "./dom.js";
import { drawMark, MARKS, palette, penOf, spritesOf } from "./shapes.js";
import { bytes, capital, count } from "./words.js";

export const MOST_COLUMNS = 60;
const HEAD = 34;
const LISTED = 100;
const WANTED = {
  all: ["Every site", () => true],
  now: ["Working now", (row) => "jtu".includes(row.marks.at(-1) ?? ".")],
  dropped: ["Dropped out recently", (row) => /[x!]/.test(row.marks)],
  idle: ["Not selected now", (row) => (row.marks.at(-1) ?? ".") === "."],
};

/** The panel of marks. `show` takes the server's answer, `redraw` follows a change of the theme. */
export class Marks {
  #data = { exchanges: [], kinds: [], clients: [] };
  #rows = [];
  #frame = 0;

  constructor() {
    this.text = el("input", { type: "search", id: "marks-filter", placeholder: "Part of a name", input: () => this.#filter() });
    this.what = el(
      "select",
      { id: "marks-what", change: () => this.#filter() },
      ...Object.entries(WANTED).map(([value, [words]]) => el("option", { value }, words)),
    );
    this.said = el("p", { class: "note" });
    this.canvas = el("canvas", { role: "img" });
    this.sizer = el("div", { class: "marks-rows" }, this.canvas);
    const label = "Marks of every site; scroll for more sites";
    this.view = el("div", { class: "marks-view", tabindex: "0", role: "region", "aria-label": label }, this.sizer);
    this.view.addEventListener("scroll", () => this.redraw(), { passive: true });
    this.view.addEventListener("pointermove", (event) => this.#point(event));
    this.pointed = el("p", { class: "note pointed", "aria-hidden": "true" });
    const list = table("Every site and its latest marks", ["Site", "Newest exchange", "Exchanges", "Updates", "Dropped out"]);
    this.body = list.body;
    this.more = el("p", { class: "note" });
    this.list = el("details", { toggle: () => this.#fillList() }, el("summary", {}, "As a table"), list.whole, this.more);
    this.element = section("Sites, exchange by exchange", { class: "marks" }, this.said, this.#controls(), this.view, this.pointed, this.list);
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.view);
  }

  #controls() {
    const legend = el("ul", { class: "legend" });
    for (const [letter, words] of Object.entries(MARKS)) {
      legend.append(el("li", {}, el("canvas", { "aria-hidden": "true", "data-letter": letter }), capital(words)));
    }
    this.legend = legend;
    return el(
      "div",
      {},
      legend,
      el(
        "div",
        { class: "filters" },
        el("label", { for: "marks-filter" }, "Find a site"),
        this.text,
        el("label", { for: "marks-what" }, "Show"),
        this.what,
      ),
    );
  }

  /** Take a new answer of the server. */
  show(data) {
    this.#data = data;
    this.#filter();
  }

  end() {
    this.observer.disconnect();
  }

  /** Draw in the next frame. */
  redraw() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #filter() {
    const [, wanted] = WANTED[this.what.value];
    const part = this.text.value.trim().toLowerCase();
    this.#rows = this.#data.clients.filter((row) => wanted(row) && row.name.toLowerCase().includes(part));
    say(this.said, this.#summary());
    this.#fillList();
    this.#draw();
  }

  #summary() {
    const { exchanges, clients } = this.#data;
    if (!exchanges.length) return "No exchange yet. Each mark will be one site's part in one exchange.";
    const now = { d: 0, u: 0, t: 0, j: 0, x: 0, "!": 0, ".": 0 };
    for (const row of clients) now[row.marks.at(-1) ?? "."] += 1;
    const parts = Object.entries(MARKS)
      .filter(([letter]) => now[letter] && letter !== ".")
      .map(([letter, words]) => `${now[letter].toLocaleString("en")} ${words}`);
    const shown = this.#rows.length === clients.length ? "" : ` ${count(this.#rows.length, "site is", "sites are")} shown.`;
    return `Exchange ${exchanges.at(-1)}, of ${count(clients.length, "site")}: ${parts.join(", ") || "no site was selected"}.${shown}`;
  }

  #layout() {
    const width = this.view.clientWidth;
    const rows = this.#rows.length;
    const height = rows <= 24 ? 24 : rows <= 120 ? 18 : 14;
    const names = Math.round(Math.min(170, Math.max(126, width * 0.2)));
    const total = this.#data.exchanges.length;
    const cell = Math.floor(Math.max(12, Math.min(18, (width - names - 8) / Math.max(total, 1))));
    const columns = Math.max(1, Math.min(total, Math.floor((width - names - 8) / cell)));
    return { width, height, names, cell, columns, first: total - columns };
  }

  #draw() {
    if (!this.view.isConnected || !this.view.clientWidth) return;
    const colours = palette();
    const at = this.#layout();
    this.sizer.style.height = `${HEAD + at.height * this.#rows.length}px`;
    const shown = Math.min(this.view.clientHeight || 400, HEAD + at.height * this.#rows.length);
    const pen = penOf(this.canvas, at.width, Math.max(shown, HEAD));
    const top = this.view.scrollTop;
    const from = Math.floor(top / at.height);
    const to = Math.min(this.#rows.length, from + Math.ceil(shown / at.height) + 1);
    pen.textBaseline = "middle";
    pen.font = `${at.height < 16 ? 11 : 13}px system-ui, sans-serif`;
    const sprites = spritesOf(at.cell, at.height, colours);
    for (let row = from; row < to; row += 1) this.#drawRow(pen, row, HEAD + row * at.height - top, at, colours, sprites);
    this.#drawHead(pen, at, colours);
    this.canvas.setAttribute("aria-label", `${this.said.textContent} The same is in the table below.`);
    for (const mark of this.legend.querySelectorAll("canvas")) {
      drawMark(penOf(mark, 14, 14), mark.dataset.letter, 0, 0, 14, 14, colours);
    }
  }

  #drawRow(pen, row, y, at, colours, sprites) {
    const { name, marks } = this.#rows[row];
    pen.fillStyle = /[x!]/.test(marks.at(-1) ?? "") ? colours.warn : colours.ink;
    pen.fillText(shortened(pen, name, at.names - 18), 10, y + at.height / 2);
    for (let column = 0; column < at.columns; column += 1) {
      const sprite = sprites.get(marks[at.first + column] ?? ".");
      pen.drawImage(sprite, at.names + column * at.cell, y, at.cell, at.height);
    }
  }

  // The share of the selected sites that are in each sum, above the column of its marks.
  #drawHead(pen, at, colours) {
    pen.fillStyle = colours.surface;
    pen.fillRect(0, 0, at.width, HEAD - 4);
    pen.fillStyle = colours.muted;
    pen.font = "11px system-ui, sans-serif";
    pen.fillText("aggregated", 10, 14);
    for (let column = 0; column < at.columns; column += 1) {
      const share = this.#share(at.first + column);
      const x = at.names + column * at.cell;
      pen.fillStyle = colours.line;
      pen.fillRect(x + 2, 4, at.cell - 4, 20);
      pen.fillStyle = colours.accent;
      pen.globalAlpha = this.#data.kinds[at.first + column] === "evaluate" ? 0.55 : 1;
      pen.fillRect(x + 2, 24 - 20 * share, at.cell - 4, 20 * share);
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(0, HEAD - 5.5);
    pen.lineTo(at.width, HEAD - 5.5);
    pen.stroke();
  }

  #share(column) {
    let [asked, done] = [0, 0];
    for (const { marks } of this.#data.clients) {
      const mark = marks[column] ?? ".";
      asked += mark !== ".";
      done += mark === "d" || mark === "u";
    }
    return asked ? done / asked : 0;
  }

  #point(event) {
    const at = this.#layout();
    const box = this.view.getBoundingClientRect();
    const column = at.first + Math.floor((event.clientX - box.left - at.names) / at.cell);
    const row = this.#rows[Math.floor((event.clientY - box.top + this.view.scrollTop - HEAD) / at.height)];
    const exchange = this.#data.exchanges[column];
    if (!row || exchange === undefined || column < at.first) return;
    const kind = this.#data.kinds[column] === "evaluate" ? "testing the model" : "training";
    say(this.pointed, `${row.name}, exchange ${exchange} (${kind}): ${MARKS[row.marks[column] ?? "."]}`);
  }

  #fillList() {
    if (!this.list.open) return;
    const rows = this.#rows.slice(0, LISTED);
    const make = () => el("tr", {}, el("th", { scope: "row" }), el("td"), el("td"), el("td"), el("td"));
    keyed(this.body, rows, (row) => row.name, make, (made, row) => {
      const marks = [...row.marks];
      const cells = [row.name, capital(MARKS[marks.at(-1) ?? "."]), row.gave.exchanges, bytes(row.gave.update_bytes), marks.filter((m) => "x!".includes(m)).length];
      cells.forEach((text, i) => say(made.children[i], String(text)));
    });
    const left = this.#rows.length - rows.length;
    say(this.more, left > 0 ? `${count(left, "more site")}; filter by name to see them.` : "");
  }
}

function shortened(pen, name, room) {
  if (pen.measureText(name).width <= room) return name;
  let end = name.length;
  while (end > 1 && pen.measureText(`${name.slice(0, end)}…`).width > room) end -= 1;
  return `${name.slice(0, end)}…`;
}
