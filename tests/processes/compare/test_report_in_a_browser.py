"""The report in a real browser, where there is one: the page asks nobody for anything."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.comparisons import everything, made_up

from fedcore.compare.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def requests_of(path: Path, profile: Path) -> list[str]:
    """Addresses on other hosts that a page asks a browser for; the browser's own business is left out."""
    log = profile / "net.json"
    command = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", f"--log-net-log={log}"),
        *("--dump-dom", path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Settings and machine" in done.stdout
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    return [
        event["url"]
        for event in events
        if event.get("url", "").startswith("http") and event.get("initiator", "not an origin") != "not an origin"
    ]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; the static test of the page stands for it")
def test_a_browser_asks_no_other_host_for_anything(tmp_path: Path) -> None:
    whole = everything()
    write_report(made_up(",".join(mode.label for mode in whole.modes), seeds=3, runs=whole.runs), tmp_path)
    page = tmp_path / "report.html"
    assert requests_of(page, tmp_path / "profile") == []
    careless = tmp_path / "careless.html"
    careless.write_text(page.read_text().replace("<main>", '<main><img src="http://elsewhere.test/pixel.png">'))
    assert requests_of(careless, tmp_path / "profile") == ["http://elsewhere.test/pixel.png"], "this test can fail"
