// Runs before the page is drawn, so that it never flashes in the other theme.
"use strict";
{
  const kept = (() => {
    try {
      return localStorage.getItem("fedcore-theme");
    } catch {
      return null; // a browser that keeps nothing
    }
  })();
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
}
