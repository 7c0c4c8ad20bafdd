// Signing in: the operator's token, or the token of a read-only link, becomes a session that this page never reads.

import { ask, Problem } from "./api.js";
import { el, say } from "./dom.js";

const FAILED = {
  0: "The server does not answer. Is it running, and is this its address?",
  401: "This is not a token of this federation, or its link has expired or was revoked.",
};

/** Exchange a token for a session; the words for a person where that fails, "" where it succeeds. */
export async function signIn(token) {
  try {
    await ask("POST", "v1/session", { token });
    return "";
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return FAILED[error.status] ?? error.message;
  }
}

/** The token of a link in the address (`#view=TOKEN`), which leaves the address bar and the history at once. */
export function tokenInAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("view");
  if (token) history.replaceState(null, "", location.pathname + location.search);
  return token;
}

/** The page that asks for a token. */
export class SignIn {
  constructor(done, failed = "") {
    this.input = el("input", { id: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
    this.failed = el("p", { class: "failed", role: "alert" }, failed);
    const form = el(
      "form",
      { class: "card sign-in", submit: (event) => this.#send(event, done) },
      el("h1", {}, "Sign in"),
      el("p", {}, "Watch how sites train a model together, while their data stays with them."),
      el("div", { class: "field" }, el("label", { for: "token" }, "Operator's token"), this.input),
      this.failed,
      el("button", { type: "submit", class: "main" }, "Sign in"),
      el("p", { class: "note" }, "The token is in the operator's kit. If somebody sent you a read-only link, open it: it signs you in."),
    );
    this.element = form;
  }

  redraw() {}

  end() {}

  async #send(event, done) {
    event.preventDefault();
    const words = await signIn(this.input.value.trim());
    this.input.value = "";
    say(this.failed, words);
    if (words) this.input.focus();
    else await done();
  }
}
