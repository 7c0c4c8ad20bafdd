"""Apps that a federation offers: kept, shown, approved by hash, taken up; and nothing of them runs before."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from support.agents import FAST, until
from support.tiny import TINY
from typer.testing import CliRunner

from client_app.agent.agent import Agent
from client_app.agent.app_updates import AppUpdater
from client_app.commands.app_difference import difference, unified, visible
from client_app.exchange.client import Client
from client_app.output import Output
from client_app.ranks.supervisor import LocalGroup
from client_app.records.offers import MOST_OFFERS, Offers
from client_app.startup import Options, group_settings, use_approved_app
from fedcore.cli.main import app
from fedcore.errors import AppError, ConfigurationError, ProtocolViolation
from fedcore.federation import ClientKit
from fedcore.flower.app import AppBundle
from fedcore.wire.presence import OFFERS_HEADER, AppOut
from fedcore.wire.tasks import Task
from tests.support.raising import raises

Script = Any  # support.scripted.Scripted
OLD = AppBundle.from_folder(TINY)
PROJECT = OLD.files["pyproject.toml"]
NEW = AppBundle({**OLD.files, "more.py": b"raise SystemExit('ran')\n", "pyproject.toml": PROJECT + b"\n# newer\n"})


def numbered(number: int) -> AppBundle:
    return AppBundle({**OLD.files, "number.py": f"{number}\n".encode()})


@pytest.fixture
def offers(tmp_path: Path) -> Offers:
    made = Offers(tmp_path / "state")
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    OLD.install(tmp_path / "state" / "apps")
    made.note_installed(OLD.sha256, OLD.sha256)
    return made


class TestFolder:
    def test_what_is_not_its_hash_is_not_kept(self, offers: Offers) -> None:
        with pytest.raises(ProtocolViolation, match="offer-malformed"):
            offers.take("ab" * 32, NEW.files)
        assert offers.hashes() == []

    @pytest.mark.parametrize("path", ["../escape.py", "/etc/cron.d/x", ".hidden/x.py", "a/../../b.py", "x.so"])
    def test_no_path_leads_out(self, offers: Offers, path: str) -> None:
        with pytest.raises(ProtocolViolation, match="offer-malformed"):
            offers.take("ab" * 32, {**OLD.files, path: b""})
        assert list(offers.folder.iterdir()) == []

    def test_the_oldest_goes_and_the_approved_one_stays(self, offers: Offers) -> None:
        first = numbered(0)
        offers.take(first.sha256, first.files)
        offers.approve(first.sha256, at=1.0)
        for number in range(1, MOST_OFFERS + 3):
            offers.take(numbered(number).sha256, numbered(number).files)
        assert first.sha256 in offers.hashes()
        assert len(offers.hashes()) == MOST_OFFERS + 1
        assert numbered(1).sha256 not in offers.hashes()

    def test_files_that_were_changed_are_not_approved(self, offers: Offers) -> None:
        offers.take(NEW.sha256, NEW.files)
        added = offers.folder / NEW.sha256 / "added.py"
        added.write_text("")
        with raises(ConfigurationError, check="changed"):
            offers.approve(NEW.sha256, at=1.0)
        with raises(ConfigurationError, check="no-offer", match="cd" * 32):
            offers.approve("cd" * 32, at=1.0)
        assert offers.approval() is None


@dataclass
class Ranks:
    """Who runs the app, without a process."""

    used: list[tuple[str, bool]] = field(default_factory=list)
    fails: bool = False

    async def use(self, app: Path, app_sha256: str) -> None:
        self.used.append((app_sha256, AppBundle.from_copy(app).sha256 == app_sha256))
        if self.fails and app_sha256 == NEW.sha256:
            raise AppError("it cannot be imported")


def offering(script: Script, *bundles: AppBundle) -> None:
    """A server whose runs want these apps."""
    usual = script.get

    async def get(route: str, request: Any) -> Response:
        for bundle in bundles:
            if route == bundle.sha256:
                return script.say("app", AppOut(files=dict(bundle.files)))
        answer = await usual(route, request)
        if route == "task" and answer.status_code == 204:
            answer.headers[OFFERS_HEADER] = ", ".join(bundle.sha256 for bundle in bundles)
        return answer

    script.get = get


@pytest.mark.parametrize("fails", [False, True])
async def test_an_agent_goes_over_to_what_its_owner_approves(
    script: Script, client: Client, offers: Offers, make_task: Callable[..., Task], log: StringIO, fails: bool
) -> None:
    """Between two exchanges, and with all that it says from then on; where the new app fails it keeps the old one."""
    offering(script, NEW)
    ranks = Ranks(fails=fails)
    agent = Agent(replace(client, app_sha256=OLD.sha256), FAST)
    agent.updater = AppUpdater(offers=offers, runner=ranks)
    running = asyncio.create_task(agent.run())
    try:
        async with script.serving():
            await until(lambda: offers.hashes() == [NEW.sha256], running)
            polls = len(script.polls)
            await until(lambda: len(script.polls) > polls + 2, running)
            assert ranks.used == []
            assert f"fedcore client approve {NEW.sha256}" in log.getvalue()
            offers.approve(NEW.sha256, at=time.time())
            expected = [(NEW.sha256, True), *([(OLD.sha256, True)] if fails else [])]
            await until(lambda: ranks.used == expected, running)
            used = OLD.sha256 if fails else NEW.sha256
            polls = len(script.polls)
            await until(lambda: len(script.polls) > polls + 2, running)
            script.tasks.append(make_task(app_sha256="cd" * 32))
            await until(lambda: script.withdrawals, running)
            assert f"this client's owner installed {used[:12]}" in log.getvalue()
            assert json.loads(script.bodies["join"])["app_sha256"] == used
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert script.requests.count(f"GET {NEW.sha256}") == 1
    assert ("cannot be used" in log.getvalue()) == fails
    assert (offers.approval() is None) == fails


async def test_a_server_that_makes_apps_up_fills_nothing(script: Script, client: Client, offers: Offers) -> None:
    """One a minute at most, and a few of them at all."""
    offering(script, *map(numbered, range(8)))
    agent = Agent(replace(client, app_sha256=OLD.sha256), FAST, updater=AppUpdater(offers=offers, runner=Ranks()))
    running = asyncio.create_task(agent.run())
    try:
        async with script.serving():
            await until(lambda: len(script.polls) >= 6, running)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(offers.hashes()) == 1


class TestStart:
    def begin(self, kit: Path, offers: Offers, app_dir: Path = TINY) -> tuple[str, str]:
        loaded = ClientKit.load(kit)
        bundle, settings = group_settings(loaded, Options(kit=kit, app=app_dir))
        log = StringIO()
        _, used = use_approved_app(bundle, settings, loaded, offers, Output(name="client-1", stream=log))
        return used.app_sha256, log.getvalue()

    def test_an_approval_is_used_and_said(self, kit: Path, offers: Offers) -> None:
        offers.take(NEW.sha256, NEW.files)
        offers.approve(NEW.sha256, at=1.0)
        used, said = self.begin(kit, offers)
        assert used == NEW.sha256
        assert f"using the app {NEW.sha256}" in said
        assert self.begin(kit, offers)[0] == NEW.sha256

    def test_another_app_by_hand_makes_it_void(self, kit: Path, offers: Offers, tmp_path: Path) -> None:
        offers.take(NEW.sha256, NEW.files)
        offers.approve(NEW.sha256, at=1.0)
        third = numbered(3)
        third.write(tmp_path / "third")
        assert self.begin(kit, offers, tmp_path / "third")[0] == third.sha256
        assert self.begin(kit, offers)[0] == OLD.sha256

    def test_a_path_of_the_kit_does_not_show_its_key(self, kit: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(TINY, tmp_path / "asks")
        with (folder / "pyproject.toml").open("a") as file:
            file.write('[tool.fedcore.node]\nimages = { type = "folder", help = "images" }\n')
        with (kit / "client.toml").open("a") as file:
            file.write('images = "."\n')
        with pytest.raises(ConfigurationError, match=r"identity\.key"):
            group_settings(ClientKit.load(kit), Options(kit=kit, app=folder))

    async def test_an_app_that_asks_for_what_the_site_lacks_does_not_start(self, kit: Path, tmp_path: Path) -> None:
        _, settings = group_settings(ClientKit.load(kit), Options(kit=kit, app=TINY))
        group = LocalGroup(settings, Output(name="client-1", stream=StringIO()))
        folder = shutil.copytree(TINY, tmp_path / "asks")
        with (folder / "pyproject.toml").open("a") as file:
            file.write('[tool.fedcore.node]\nward = { type = "string", help = "which ward" }\n')
        with raises(ConfigurationError, check="node-config"):
            await group.use(folder, "ab" * 32)
        assert group.settings.app == settings.app

    def test_an_offer_alone_changes_nothing(self, kit: Path, offers: Offers) -> None:
        offers.take(NEW.sha256, NEW.files)
        assert self.begin(kit, offers) == (OLD.sha256, "")


class TestCommands:
    def test_they_list_and_approve(self, kit: Path, tmp_path: Path, offers: Offers) -> None:
        offers.take(NEW.sha256, NEW.files)
        where = ["--kit", str(kit), "--state-dir", str(tmp_path / "state")]
        shown = CliRunner().invoke(app, ["client", "offers", "--diff", *where])
        assert "new      more.py" in shown.stdout
        assert "+raise SystemExit('ran')" in shown.stdout
        told = CliRunner().invoke(app, ["client", "approve", NEW.sha256, *where])
        assert told.exit_code == 0, told.output
        entries = json.loads(CliRunner().invoke(app, ["client", "offers", "--json", *where]).stdout)
        assert entries["approved"] == NEW.sha256
        assert [entry["changed"] for entry in entries["offers"]] == [["pyproject.toml"]]

    def test_a_pinned_app_is_not_replaced(self, kit: Path, tmp_path: Path, offers: Offers) -> None:
        policy = kit / "policy.toml"
        policy.write_text(policy.read_text().replace('app-sha256 = ""', f'app-sha256 = "{OLD.sha256}"'))
        offers.take(NEW.sha256, NEW.files)
        where = ["--kit", str(kit), "--state-dir", str(tmp_path / "state")]
        refused = CliRunner().invoke(app, ["client", "approve", NEW.sha256, *where])
        assert refused.exit_code == 2
        assert "policy.toml" in refused.stderr
        assert offers.approval() is None


def test_changed_config_is_named(tmp_path: Path) -> None:
    changed = PROJECT.replace(b"[tool.flwr.app.config]", b"[tool.flwr.app.config]\nfresh = 3", 1)
    assert changed != PROJECT
    after = AppBundle({**OLD.files, "pyproject.toml": changed})
    OLD.write(tmp_path / "old")
    after.write(tmp_path / "new")
    found = difference(OLD, after, folders=(tmp_path / "old", tmp_path / "new"))
    assert found.config == {"fresh": "nothing -> 3"}
    assert found.changed == ("pyproject.toml",)


def test_an_offer_steers_no_terminal_and_hides_no_word() -> None:
    long = "x" * 5000 + "os.system('y')"
    after = AppBundle({**OLD.files, "a.py": f"\x1b[2J\u202e{long}".encode()})
    (line,) = [line for line in unified(OLD, after) if line.startswith("+") and "x" * 10 in line]
    assert "\x1b" not in line
    assert "\u202e" not in line
    assert line.endswith("os.system('y')")
    assert visible("a\tb\r") == "a\tb\\r"
