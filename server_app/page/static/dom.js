// Elements. Text only ever becomes text: nothing here reads HTML.

/** An element. Keys of `options` that are functions are listeners, others attributes; `false` and null are left out. */
export function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Set an element's text, if it is another one: screen readers hear of changes only. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Have `host` hold one child for each item, in order; a child stays the same element while its key is there. */
export function keyed(host, items, key, make, update) {
  const before = new Map([...host.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const name = String(key(item));
    let child = before.get(name);
    before.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    update(child, item);
    if (host.children[at] !== child) host.insertBefore(child, host.children[at] ?? null);
  });
  for (const child of before.values()) child.remove();
}

/** A table with a caption and a header; returns the element and its body. */
export function table(caption, heads, options = {}) {
  const body = el("tbody");
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  const whole = el("table", options, el("caption", {}, caption), el("thead", {}, head), body);
  return { whole: el("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": caption }, whole), body };
}

/** A section with a heading. */
export function section(title, options, ...children) {
  const heading = el("h2", {}, title);
  return el("section", { "aria-label": title, ...options }, heading, ...children);
}

const announcer = () => document.getElementById("announcer");
let heard = 0;

/** Tell a screen reader. What is not urgent is said at most every ten seconds, and left out in between. */
export function announce(text, urgent = false) {
  const now = performance.now();
  if (!urgent && now - heard < 10_000) return;
  heard = now;
  say(announcer(), text);
}
