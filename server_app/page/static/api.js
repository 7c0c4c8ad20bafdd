// What is asked of the server, all of it below this page's own address.

import { painted } from "./frames.js";

/** An answer that is a problem document (RFC 9457). */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function send(method, path, body) {
  const options = { method, credentials: "same-origin", headers: { "X-Fedcore": "1" } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Problem(0, "the server does not answer");
  }
  const text = await response.text();
  if (response.ok) return text;
  let detail = response.statusText;
  try {
    detail = JSON.parse(text).detail ?? detail;
  } catch {
    // not a problem document: something between here and the server answered
  }
  if (response.status === 401 && path !== "v1/session") window.dispatchEvent(new Event("fedcore-signed-out"));
  throw new Problem(response.status, detail);
}

/** Ask for something; its JSON, null where the answer is empty. */
export async function ask(method, path, body) {
  const text = await send(method, path, body);
  return text ? JSON.parse(text) : null;
}

/** Fetch JSON and give it to `show`, as one measured update. Problems of the kinds in `passed` are left alone. */
export async function load(path, show, passed = []) {
  let text;
  try {
    text = await send("GET", path);
  } catch (error) {
    if (error instanceof Problem && [0, 401, 429, 503, ...passed].includes(error.status)) return false;
    throw error;
  }
  painted(() => show(JSON.parse(text)));
  return true;
}

/** The address of something of a run. */
export function of(run, what = "") {
  return `v1/runs/${encodeURIComponent(run)}${what && `/${what}`}`;
}
