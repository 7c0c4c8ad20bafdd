// Members of the federation: which are connected, and what each does for the run on the page.

import { el, keyed, say, section, table } from "./dom.js";
import { CLIENT, bytes, count, duration } from "./words.js";

const LISTED = 25;
const SIGNS = { away: "○", waiting: "◌", training: "▶", uploading: "▲", done: "■", dropped: "✕" };
const FIRST = ["dropped", "uploading", "training", "done", "waiting", "away"];

/** The panel of members. `members` and `standings` take what the server says of them, of the roster and of a run. */
export class Members {
  #members = [];
  #standings = new Map();
  #all = false;

  constructor() {
    this.said = el("p", { class: "note" });
    this.find = el("input", { type: "search", id: "members-filter", placeholder: "Part of a name", input: () => this.#draw() });
    this.label = el("label", { for: "members-filter" }, "Find a site");
    const made = table("Members of the federation", ["Site", "Connected", "Now", "Why"], { class: "members" });
    this.body = made.body;
    this.whole = made.whole;
    this.more = el("button", { type: "button", class: "quiet", click: () => this.#showAll() });
    this.filters = el("div", { class: "filters" }, this.label, this.find);
    this.element = section("Members", {}, this.said, this.filters, this.whole, this.more);
  }

  /** The whole roster, or only counts where it is long and changes. */
  members({ clients, online, members }) {
    if (clients) this.#members = clients;
    const here = online ?? this.#members.filter((member) => member.online).length;
    const all = members ?? this.#members.length;
    say(this.said, all ? `${here.toLocaleString("en")} of ${count(all, "site is", "sites are")} connected.` : "There are no members yet.");
    this.#draw();
  }

  /** What each does for a run; nothing after the run's end. */
  standings(clients) {
    this.#standings = new Map(clients.map((client) => [client.name, client]));
    this.#draw();
  }

  #showAll() {
    this.#all = true;
    this.#draw();
  }

  #draw() {
    const part = this.find.value.trim().toLowerCase();
    const found = this.#members.filter((member) => member.name.toLowerCase().includes(part));
    if (this.#members.length > LISTED) {
      const rank = (member) => FIRST.indexOf(this.#standings.get(member.name)?.state ?? (member.online ? "waiting" : "away"));
      found.sort((a, b) => rank(a) - rank(b));
    }
    const shown = found.slice(0, this.#all ? 1000 : LISTED);
    keyed(this.body, shown, (member) => member.id, row, (made, member) => update(made, member, this.#standings.get(member.name)));
    this.filters.hidden = this.#members.length <= 8;
    this.more.hidden = shown.length === found.length;
    say(this.more, `Show all ${found.length.toLocaleString("en")}`);
  }
}

function row() {
  const sign = el("span", { class: "sign", "aria-hidden": "true" });
  return el("tr", {}, el("th", { scope: "row" }), el("td"), el("td", {}, sign, el("span")), el("td", { class: "why" }));
}

function update(made, member, standing) {
  const [name, here, now, why] = made.children;
  const state = standing?.state ?? (member.online ? "waiting" : "away");
  const seen = member.last_seen_seconds;
  say(name, member.name);
  say(here, member.online ? "yes" : seen === null ? "not yet" : `no, last seen ${duration(seen)} ago`);
  say(now.firstChild, SIGNS[state]);
  say(now.lastChild, standing || !member.online ? CLIENT[state] : "no run");
  const ruled = member.online && !member.eligible ? "outside its owner's training rules" : "";
  const off = member.clock_seconds ?? 0;
  const clock = off ? `its clock is ${duration(Math.abs(off))} ${off > 0 ? "ahead" : "behind"}` : "";
  const speeds = [member.up_speed && `${bytes(member.up_speed)}/s up`, member.down_speed && `${bytes(member.down_speed)}/s down`];
  const line = speeds.filter(Boolean).join(", ");
  say(why, standing?.why || clock || ruled || member.rests || (line && `a slow line: ${line}`));
  made.dataset.state = state;
}
