"""The report in a real browser, where there is one: the page asks nobody for anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect
from support.browser import Watched, chromium, needs_browser
from support.comparisons import everything, made_up

from fedcore.comparison.report import write_report


@needs_browser
def test_a_browser_asks_no_other_host_for_anything(tmp_path: Path) -> None:
    whole = everything()
    write_report(made_up(",".join(mode.label for mode in whole.modes), seeds=3, runs=whole.runs), tmp_path)
    page = tmp_path / "report.html"
    careless = tmp_path / "careless.html"
    careless.write_text(page.read_text().replace("<main>", '<main><img src="http://elsewhere.test/pixel.png">'))
    with chromium() as browser:
        watched = Watched(browser)
        watched.page.goto(page.as_uri())
        expect(watched.page.locator("body")).to_contain_text("Settings and machine")
        assert watched.elsewhere("file:") == []
        watched.page.goto(careless.as_uri())
        assert watched.elsewhere("file:") == ["http://elsewhere.test/pixel.png"], "this test can fail"


@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_the_first_screen_has_sentences_a_table_and_a_figure(tmp_path: Path, width: int, theme: str) -> None:
    modes = "local,federated,federated-plain,centralized,ps-async"
    write_report(made_up(modes, seeds=3, changed=("lr",)), tmp_path)
    with chromium() as browser:
        watched = Watched(browser, viewport={"width": width, "height": 900}, theme=theme)
        watched.page.goto((tmp_path / "report.html").as_uri())
        blocks = [watched.page.locator(name).first for name in (".headline", ".first table", ".first figure")]
        boxes = [box for block in blocks if (box := block.bounding_box()) is not None]
        assert len(boxes) == 3
        headline, table, figure = boxes
        assert headline["y"] + headline["height"] <= min(table["y"], figure["y"])
        assert watched.sideways() == 0, "the page itself does not scroll"
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes), "nothing is cut off"
        if width == 1280:
            assert figure["y"] < 900
            assert figure["y"] + figure["height"] <= 900, "the whole figure, and not only its title"
            assert table["x"] + table["width"] <= figure["x"]
        else:
            assert table["y"] + table["height"] <= figure["y"]
