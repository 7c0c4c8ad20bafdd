// Signing in: the operator's token, that of a read-only link, or a login at the identity provider becomes a session,
// which this page never reads.

import { ask, Problem } from "./api.js";
import { el, say } from "./dom.js";

const FAILED = {
  0: "The server does not answer. Is it running, and is this its address?",
  401: "This is not a token of this federation, or its link has expired or was revoked.",
};

const NO_LOGIN = {
  audience: "The identity provider's token is for another audience. The server's owner has to mend [oidc] in server.toml.",
  client: "The identity provider does not know this server. The server's owner has to check client-id and its secret in server.toml.",
  clock: "The clocks of the server and of the identity provider differ too much. Their owners have to set them.",
  expired: "The login had expired when it arrived. Begin again; if that does not help, a clock is wrong.",
  issuer: "The identity provider does not answer as it should. The server's log says more.",
  login: "This login took too long, or began in another window. Begin again.",
  "no-id-token": "The identity provider sent no ID token: it has to allow the scope openid for this server.",
  "no-role": "This account is neither operator nor viewer here. Ask the identity provider's administrator for such a role.",
  unreachable: "The server cannot reach the identity provider. Try again, or use the operator's token.",
};

/** Why a login at the identity provider failed, for a person: the address has one word (`#sign-in=WORD`). */
export function failureInAddress() {
  const word = new URLSearchParams(location.hash.slice(1)).get("sign-in");
  if (word === null) return "";
  history.replaceState(null, "", location.pathname + location.search);
  return Object.hasOwn(NO_LOGIN, word) ? NO_LOGIN[word] : "The login did not succeed. Begin again; the server's log says more.";
}

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
  constructor(done, failed = "", wasPerson = false) {
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
    this.#offerProvider(form, wasPerson);
  }

  async #offerProvider(form, wasPerson) {
    let provider;
    try {
      provider = await ask("GET", "v1/oidc");
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return; // this server has none, or does not answer: then signing in says so
    }
    const { host } = new URL(provider.issuer);
    const link = el("a", { href: "oidc/login", class: "button main", id: "provider" }, `Sign in at ${host}`);
    const leave = el("p", { class: "note" }, "You are signed out here. ", el("a", { href: "oidc/logout" }, `Sign out at ${host}, too`));
    form.querySelector("p").after(link, ...(wasPerson ? [leave] : []));
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
