"""A real browser, where there is one: Debian's Chromium, led by Playwright, which asks no other host for anything."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 360, "height": 780}
PATIENCE_MS = 600_000
"""How long anything may take on a busy machine."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that finds no host by a name, so that a request to another one cannot even leave."""
    options = (
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    )
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(options))
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page of a browser, with whatever it asked for and complained of. `asked` are addresses of all requests."""

    def __init__(
        self, browser: Browser, *, theme: str = "light", viewport: dict[str, int] = DESK, **options: Any
    ) -> None:
        self.context = browser.new_context(viewport=viewport, color_scheme=theme, ignore_https_errors=True, **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)

    def _hear(self, message: Any) -> None:
        # A failed request is a line of the browser's own; what follows from it is for the page to show.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def elsewhere(self, base: str) -> list[str]:
        """The requests that did not go below `base`; data within the page is no request."""
        return [url for url in self.asked if not url.startswith((base, "data:", "blob:"))]

    def findings(self) -> list[str]:
        """What axe takes for a serious or critical barrier, each with the first element that has it."""
        violations = Axe().run(self.page).response["violations"]
        return [
            f"{found['id']}: {found['help']}: {found['nodes'][0]['html']}"
            for found in violations
            if found["impact"] in ("serious", "critical")
        ]

    def sideways(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))
