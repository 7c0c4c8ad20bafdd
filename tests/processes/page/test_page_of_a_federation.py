"""The page of a real server with real clients: a run is followed, a client dies, the run is stopped and run again."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect
from support.browser import Watched, chromium, needs_browser
from support.deployment import QUICK, Deployment, fedcore
from support.tiny import TINY

from fedcore.federation import OperatorKit
from fedcore.state import read_facts

pytestmark = needs_browser


def start_run(federation: Deployment, gate: Path) -> str:
    """Submit a run of many rounds as an operator who does not stay; its id."""
    kit = federation.federation.operator
    words: list[str | Path] = ["run", TINY, "--operator", kit, "--detach", "--json"]
    for key, value in {"num-server-rounds": 500, "gate": str(gate)}.items():
        words += ["--run-config", f"{key}={json.dumps(value)}"]
    for key, value in {**QUICK, "min-clients": 3, "best-model": "eval_loss:min"}.items():
        words += ["--set", f"{key}={value}"]
    done = fedcore(*words, mark=federation.mark)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout.splitlines()[0])["run"])


def test_a_run_is_followed_a_dead_client_is_named_and_the_run_is_stopped(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Deployment.open(tmp_path, clients=4) as federation, chromium() as browser:
        federation.start()
        kit = OperatorKit.load(federation.federation.operator)
        url = f"{kit.servers[0]}/"
        watched = Watched(browser)
        page = watched.page
        page.goto(url)
        page.get_by_label("Operator's token").fill(kit.token)
        page.keyboard.press("Enter")
        expect(page.get_by_text("4 of 4 sites are connected")).to_be_visible()

        run = start_run(federation, gate)
        expect(page.locator(".round")).to_have_text("Round 1 of 500")
        expect(page.locator(".step")).to_contain_text("Sites work on their own data")
        expect(page.locator("tr", has_text="client-2").locator("td").nth(1)).to_contain_text("training")
        federation.kill("client-2")
        gate.touch()
        expect(page.locator(".happened")).to_contain_text("client-2 dropped out during input")
        expect(page.locator(".round")).to_have_text(re.compile(r"Round [3-9]|Round \d\d"))
        expect(page.locator("tr", has_text="client-2").locator("td").nth(1)).to_contain_text("not connected")
        expect(page.locator(".plots .uplot").first).to_be_visible()
        expect(page.locator(".saw")).to_contain_text(re.compile("Received from client-[134]"))
        assert watched.findings() == []

        page.get_by_role("button", name="Stop …").click()
        page.get_by_role("button", name="Stop the run").click()
        expect(page.locator(".run-head .badge")).to_contain_text("stopped")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download the checkpoint").click()
        assert download.value.path().stat().st_size > 0
        with page.expect_download() as download:
            page.get_by_role("link", name="Download the best model").click()
        assert (facts := read_facts(download.value.path())) is not None
        assert facts.best.startswith("eval_loss = ")
        page.get_by_role("button", name="Run again …").click()
        page.get_by_role("button", name="Submit again").click()
        expect(page.locator(".facts")).to_contain_text("num-server-rounds")
        assert run not in page.url
        page.get_by_role("button", name="Stop …").click()
        page.get_by_role("button", name="Stop the run").click()
        expect(page.locator(".run-head .badge")).to_contain_text("stopped")
        assert (watched.elsewhere(url), watched.complaints) == ([], [])
        watched.context.close()
