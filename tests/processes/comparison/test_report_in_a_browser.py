"""The report in a real browser, where there is one: the page asks nobody for anything."""

from __future__ import annotations

from pathlib import Path

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
