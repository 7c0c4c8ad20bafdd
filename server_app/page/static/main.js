// Where the page begins: who is signed in, which page is shown, and the switch of the theme.

import { ask, Problem } from "./api.js";
import { Links } from "./links.js";
import { Overview } from "./overview.js";
import { Run } from "./run.js";
import { failureInAddress, SignIn, signIn, tokenInAddress } from "./signin.js";

const byId = (id) => document.getElementById(id);
let session = null;
let page = null;

function show(next, name, title) {
  page?.end();
  page = next;
  byId("content").replaceChildren(next.element);
  document.title = title;
  for (const link of byId("pages").querySelectorAll("a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function askToSignIn(failed, wasPerson = false) {
  session = null;
  byId("pages").hidden = byId("sign-out").hidden = true;
  show(new SignIn(begin, failed, wasPerson), "", "Sign in · fedcore");
  page.input.focus();
}

function route() {
  if (!session) return;
  const isOperator = session.role === "operator";
  const run = new URLSearchParams(location.hash.slice(1)).get("run");
  if (run) {
    const shown = new Run(run, { isOperator, isAlone: true });
    show(shown, "", `${run} · ${session.federation}`);
  } else if (location.hash === "#links" && isOperator) {
    show(new Links(), "links", `Read-only links · ${session.federation}`);
  } else {
    show(new Overview({ isOperator, federation: session.federation }), "overview", session.federation);
  }
}

async function begin(failed = "") {
  try {
    session = await ask("GET", "v1/session");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    askToSignIn(error.status === 401 ? failed : error.message);
    return;
  }
  byId("sign-out").title = session.person ? `Signed in as ${session.person}` : "";
  byId("pages").hidden = byId("sign-out").hidden = false;
  byId("links-page").hidden = session.role !== "operator";
  route();
}

async function signOut() {
  const wasPerson = Boolean(session?.person);
  try {
    await ask("DELETE", "v1/session");
  } finally {
    history.replaceState(null, "", location.pathname);
    askToSignIn("", wasPerson);
  }
}

async function follow() {
  const token = tokenInAddress();
  if (!token) {
    route();
    return;
  }
  const failed = await signIn(token);
  if (failed) askToSignIn(failed);
  else await begin();
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";

function nameTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", isDark() ? "Switch to the light theme" : "Switch to the dark theme");
  page?.redraw();
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("fedcore-theme", theme);
  } catch {
    // a browser that keeps nothing: the theme lasts as long as the page
  }
  nameTheme();
}

byId("theme").addEventListener("click", switchTheme);
byId("sign-out").addEventListener("click", signOut);
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which page is shown
  byId("content").focus();
});
prefersDark.addEventListener("change", nameTheme);
addEventListener("hashchange", follow);
addEventListener("fedcore-signed-out", () => session && askToSignIn("You were signed out."));
nameTheme();

const noLogin = failureInAddress();
const token = tokenInAddress();
const failed = token ? await signIn(token) : "";
if (failed) askToSignIn(failed);
else await begin(noLogin);
