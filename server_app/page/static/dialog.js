// Dialogs: confirm an action that others notice, or report one that failed.

import { el } from "./dom.js";

/** Ask for confirmation; resolves to true or false. text: what will happen, one paragraph each. */
export function confirm(title, text, yes) {
  return new Promise((resolve) => {
    const answer = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const dialog = el(
      "dialog",
      { "aria-labelledby": "dialog-title", cancel: () => answer(false) },
      el("h2", { id: "dialog-title" }, title),
      ...text.map((paragraph) => el("p", {}, paragraph)),
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", class: "quiet", click: () => answer(false) }, "Cancel"),
        el("button", { type: "button", class: "main", click: () => answer(true) }, yes),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Report what could not be done. */
export function tell(title, text) {
  return new Promise((resolve) => {
    const shut = () => {
      dialog.close();
      dialog.remove();
      resolve();
    };
    const dialog = el(
      "dialog",
      { "aria-labelledby": "dialog-title", cancel: shut },
      el("h2", { id: "dialog-title" }, title),
      el("p", {}, text),
      el("div", { class: "buttons" }, el("button", { type: "button", class: "main", click: shut }, "Close")),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
