"""Draw docs/page/*.png: every page at the server's address, in both themes and widths, before a made-up federation.

PYTHONPATH=.:tests python docs/make_page_screenshots.py
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page
from support.browser import CHROMIUM, DESK, PHONE, Watched, chromium
from support.made_up_page import OPERATOR, made_up_page
from support.made_up_world import RUN, World
from support.ports import reserved_port

FOLDER = Path(__file__).parent / "page"


def keep(picture: bytes, name: str) -> None:
    """Write a picture with 256 colours, which is a third of its size and looks the same."""
    small = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    small.save(FOLDER / f"{name}.png", optimize=True)


def draw(page: Page, url: str, suffix: str) -> None:
    """All pages, as somebody comes through them who signs in."""

    def shoot(name: str, *, whole: bool = True) -> None:
        page.wait_for_timeout(600)  # a frame for the marks, and the fonts
        keep(page.screenshot(full_page=whole), f"{name}-{suffix}")

    page.goto(url)
    page.locator("#token").wait_for()
    shoot("sign-in", whole=False)
    page.keyboard.type(OPERATOR)
    page.keyboard.press("Enter")
    page.locator(".plots .uplot").nth(2).wait_for()
    shoot("overview")
    page.get_by_role("button", name="Stop …").click()
    shoot("stop", whole=False)
    page.keyboard.press("Escape")
    page.goto(f"{url}#run={RUN}")
    page.locator(".facts div").first.wait_for()
    page.locator(".plots .uplot").nth(2).wait_for()
    shoot("run")
    page.goto(f"{url}#links")
    page.locator("#link-label").fill("Ethics board")
    page.keyboard.press("Enter")
    page.locator("#link-url").wait_for()
    shoot("links", whole=False)


def main() -> None:
    """Raises SystemExit if there is no browser."""
    if CHROMIUM is None:
        raise SystemExit("no Chromium is installed")
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        for theme in ("light", "dark"):
            for width, viewport in (("desk", DESK), ("phone", PHONE)):
                # A world of its own each: in the last one a link was made.
                with reserved_port() as port, made_up_page(World(), port) as url:
                    watched = Watched(browser, theme=theme, viewport=viewport, reduced_motion="reduce")
                    draw(watched.page, url, f"{width}-{theme}")
                    watched.context.close()
        with reserved_port() as port, made_up_page(World(clients=1000, planned=500, done=120), port) as url:
            watched = Watched(browser, reduced_motion="reduce")
            watched.page.goto(f"{url}#view={OPERATOR}")
            watched.page.locator(".plots .uplot").nth(2).wait_for()
            watched.page.wait_for_timeout(1500)
            keep(watched.page.locator(".marks").screenshot(), "a-thousand-sites")
            watched.context.close()
    sys.stdout.write(f"{FOLDER}\n")


if __name__ == "__main__":
    main()
