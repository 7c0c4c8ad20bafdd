// Read-only links, which an operator creates and revokes.

import { ask, load, Problem } from "./api.js";
import { confirm, tell } from "./dialog.js";
import { announce, el, keyed, say, section, table } from "./dom.js";
import { when } from "./words.js";

const REVOKE = ["Everybody who signed in with this link is signed out at once and cannot use it again."];

/** The page of links. */
export class Links {
  constructor() {
    this.label = el("input", { id: "link-label", required: true, maxlength: "80", placeholder: "Ethics board" });
    this.days = el("input", { id: "link-days", type: "number", min: "1", max: "365", value: "30", required: true });
    this.form = el(
      "form",
      { class: "card", submit: (event) => this.#make(event) },
      el("div", { class: "field" }, el("label", { for: "link-label" }, "Who is it for?"), this.label),
      el("div", { class: "field" }, el("label", { for: "link-days" }, "Days until it expires"), this.days),
      el("button", { type: "submit", class: "main" }, "Create a link"),
    );
    this.made = el("div", { class: "card made", hidden: true });
    const list = table("Links that can be used now", ["For", "Expires", ""]);
    this.body = list.body;
    this.whole = list.whole;
    this.none = el("p", { class: "note" }, "There are no read-only links.");
    this.element = el(
      "div",
      {},
      el("h1", {}, "Read-only links"),
      el("p", { class: "lede" }, "Anybody with such a link sees this page: members, runs, curves and what the server can see. They cannot start or stop anything, or download a model."),
      this.form,
      this.made,
      section("Links", {}, this.none, this.whole),
    );
    this.#fetch();
  }

  redraw() {}

  end() {}

  #fetch() {
    return load("v1/links", (answer) => this.#show(answer.links ?? answer));
  }

  #show(links) {
    this.none.hidden = links.length > 0;
    this.whole.hidden = links.length === 0;
    const make = (link) => {
      const revoke = el("button", { type: "button", class: "quiet", "aria-label": `Revoke the link for ${link.label}`, click: () => this.#revoke(link) }, "Revoke …");
      return el("tr", {}, el("th", { scope: "row" }), el("td"), el("td", {}, revoke));
    };
    keyed(this.body, links, (link) => link.id, make, (row, link) => {
      say(row.children[0], link.label);
      say(row.children[1], when(link.expires));
    });
  }

  async #make(event) {
    event.preventDefault();
    try {
      const link = await ask("POST", "v1/links", { label: this.label.value.trim(), days: Number(this.days.value) });
      const address = el("input", { readonly: true, id: "link-url", value: link.url, class: "wide" });
      const copy = el("button", { type: "button", click: () => this.#copy(address) }, "Copy");
      this.made.replaceChildren(
        el("label", { for: "link-url" }, `The link for ${link.label}. It is shown only once; treat it like a password.`),
        el("div", { class: "filters" }, address, copy),
      );
      this.made.hidden = false;
      this.form.reset();
      address.select();
      await this.#fetch();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      await tell("The link was not created", error.message);
    }
  }

  async #copy(address) {
    address.select();
    try {
      await navigator.clipboard.writeText(address.value);
      announce("Copied", true);
    } catch {
      announce("Press Ctrl and C to copy the link", true); // a browser that lets no page write there
    }
  }

  async #revoke(link) {
    if (!(await confirm(`Revoke the link for ${link.label}?`, REVOKE, "Revoke it"))) return;
    try {
      await ask("DELETE", `v1/links/${encodeURIComponent(link.id)}`);
      await this.#fetch();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      await tell("The link was not revoked", error.message);
    }
  }
}
