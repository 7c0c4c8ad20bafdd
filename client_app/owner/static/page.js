// Reads the page again every few seconds and puts in what has changed, so that focus and scrolling stay where they are.
"use strict";

const PAUSE = 4000;
const told = document.getElementById("told");

function update(page) {
  for (const fresh of page.querySelectorAll("main > section")) {
    const shown = document.getElementById(fresh.id);
    if (shown && shown.innerHTML !== fresh.innerHTML && !shown.contains(document.activeElement)) {
      shown.className = fresh.className;
      shown.replaceChildren(...fresh.childNodes);
    }
  }
  told.textContent = page.getElementById("told").textContent;
}

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      update(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      told.textContent = "This page is no longer served. To open it again: fedcore client status --page";
    }
  }
  setTimeout(refresh, PAUSE);
}

setTimeout(refresh, PAUSE);
