// Reads the page again every few seconds and puts in what has changed, so that focus and scrolling stay where they are.
"use strict";

const PAUSE = 4000;
const asOf = document.getElementById("as-of");

function update(page) {
  for (const fresh of page.querySelectorAll("main > section")) {
    const current = document.getElementById(fresh.id);
    if (current && current.innerHTML !== fresh.innerHTML && !current.contains(document.activeElement)) {
      current.className = fresh.className;
      current.replaceChildren(...fresh.childNodes);
    }
  }
  asOf.textContent = page.getElementById("as-of").textContent;
}

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      update(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      asOf.textContent = "This page is no longer served. To open it again: fedcore client status --page";
    }
  }
  setTimeout(refresh, PAUSE);
}

setTimeout(refresh, PAUSE);
