"""`fedcore client status`: the status of a client for its owner, from the records on disk alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.agents import agent_running, until
from typer.testing import CliRunner

from client_app.exchange.client import Client
from client_app.owner.document import as_html, as_markdown
from client_app.owner.hours import windows
from client_app.owner.sections import doing, sections
from client_app.owner.status import read_status
from client_app.records.activity import ActivityFile, note_sandbox, read_activity
from client_app.records.ledger import Ledger
from client_app.records.ledger_entries import LEDGER_FILE
from client_app.records.offers import Offers
from fedcore.cli.main import app
from fedcore.codec.privacy import Accountant, Release
from fedcore.federation.admission.owner import AgreedSum
from fedcore.federation.eligibility import EligibilityRules, Hours
from fedcore.federation.transcript import NoisedSum

Script = Any  # support.scripted.Scripted
RELEASE = Release(mechanism="skellam", variance=1e6, shares=3, scale=1024, dimension=100)
ASKED = {"attempt": 1, "message_type": "train", "app_sha256": "ab" * 32, "model": "11", "cohort": 4, "changed": {}}


@pytest.fixture
def state(kit: Path) -> Path:
    """The state folder of a client with a sum that it is in, a refusal, and a readable reply."""
    folder = kit / "state"
    folder.mkdir()
    policy = kit / "policy.toml"
    policy.write_text(policy.read_text().replace("max-epsilon = 0.0", "max-epsilon = 8.0"))
    now = iter(range(1_700_000_000, 1_800_000_000, 3600))
    with Ledger(folder, wall=lambda: float(next(now))) as ledger:
        ledger.ask("first", 1, aggregation="secure", **ASKED)
        ledger.enter("first", 1)
        who = {"cohort": [1, 2, 3, 4], "quorum": 3, "corrupt": 0, "threshold": 3, "full_graph": True}
        attempt = NoisedSum.model_validate({"run": "first", "exchange": 1, "release": RELEASE, "previous": "", **who})
        ledger.spend(attempt)
        ledger.send("first", 1, "masked", 4_000)
        sum_of = {"purpose": "train", "model": "11", "survivors": "1-2,4", "bounds": "22"}
        ledger.release(AgreedSum(run="first", exchange=1, scales=(1.0,), **sum_of))
        ledger.leave("first", 1, up=5_000, down=900_000)
        ledger.ask("<b>nosy", 1, aggregation="secure", **ASKED)
        ledger.enter("<b>nosy", 1)
        ledger.refuse("<b>nosy", 1, "config-not-allowed", "fedcore.w-max|`")
        ledger.leave("<b>nosy", 1, up=10, down=20)
        ledger.ask("open", 1, aggregation="plain", **ASKED)
        ledger.enter("open", 1)
        ledger.send("open", 1, "readable", 77)
    return folder


def test_the_status_says_what_holds_for_the_app(kit: Path, state: Path) -> None:
    assert read_status(kit, None).sandbox == ""
    note_sandbox(state, "files restricted; no network")
    status = read_status(kit, None)
    assert status.sandbox == "files restricted; no network"
    assert status.sandbox in " ".join(sections(status)[0].text)


def test_runs_bytes_refusals_and_epsilon(kit: Path, state: Path) -> None:
    found = read_status(kit, None)
    first, nosy, plain = found.runs
    assert (first.masked, first.readable, first.others) == (1, 0, 2)
    assert (first.up, first.down) == (5_000, 900_000)
    assert first.spending.epsilon == found.spending.noised_epsilon == Accountant((RELEASE,)).epsilon(1e-5)
    assert (nosy.masked, nosy.refused, nosy.spending.epsilon) == (0, 1, 0), "what is refused is not counted as sent"
    assert (plain.masked, plain.readable, plain.spending.epsilon) == (0, 1, None)
    assert found.spending.epsilon is None
    assert [(refusal.check, refusal.times) for refusal in found.refusals] == [("config-not-allowed", 1)]
    assert found.spending.allowed == 8.0


def test_an_app_has_its_name_next_to_its_hash(kit: Path, state: Path) -> None:
    Offers(state).note_name("ab" * 32, "tumours\x1b[2J")
    text = as_markdown(read_status(kit, None))
    assert "ab" * 6 in text
    assert "tumours" in text
    assert "\x1b" not in text


def test_a_ledger_of_an_earlier_version_is_read(kit: Path, state: Path) -> None:
    lines = (state / LEDGER_FILE).read_text().splitlines()
    old = [json.dumps({"run": "old", "exchange": 1, "event": event}) for event in ("entered", "left")]
    (state / LEDGER_FILE).write_text("\n".join([*old, *lines]) + "\n")
    assert read_status(kit, None).runs[0].up == 0
    with Ledger(state) as ledger:
        assert ledger.entered_in("old") == 1


def test_whether_an_agent_runs_is_told_by_its_lock(kit: Path, state: Path) -> None:
    ActivityFile(state, wall=lambda: 1_700_000_000.0).note("waiting", server="https://server")
    assert not read_status(kit, None).running
    assert "No agent runs" in sections(read_status(kit, None))[0].text[0]
    with Ledger(state):
        found = read_status(kit, None)
        assert found.running
        assert "waits for a task" in sections(found)[0].text[0]
        ActivityFile(state).note("training", server="https://server", run="abc")
        assert "trains for a later sum of run abc" in sections(read_status(kit, None))[0].text[0]
    with Ledger(state):
        pass  # looking left no lock behind


def test_a_client_that_was_never_started(kit: Path) -> None:
    found = read_status(kit, None)
    assert (found.runs, found.running, found.now, found.transcript) == ((), False, None, None)


async def test_the_agent_notes_what_it_does_and_what_went_over_the_line(client: Client, script: Script) -> None:
    script.tasks.append(script.task)
    seen = set()

    def over() -> bool:
        now = read_activity(client.state_dir)
        seen.add(now.doing if now else "")
        return bool(script.decoded) and client.ledger.open_exchange is None and bool(now) and now.doing == "waiting"

    async with script.serving(), agent_running(client) as running:
        await until(over, running)
    assert seen >= {"taking part", "waiting"}
    stopped = read_activity(client.state_dir)
    assert stopped is not None
    assert stopped.doing == "stopped"
    lines = [json.loads(line) for line in (client.state_dir / LEDGER_FILE).read_text().splitlines()]
    (sent,) = (line for line in lines if line["event"] == "sent")
    (left,) = (line for line in lines if line["event"] == "left")
    assert sent["form"] == "masked"
    assert left["up"] > sent["size"] == script.encoding().words * 8
    assert left["down"] > script.model.stat().st_size


class TestHours:
    NOW = datetime(2026, 3, 2, 21, 30, 20, tzinfo=UTC)

    def test_no_rule_is_one_window(self) -> None:
        ((begin, end),) = windows(EligibilityRules(), self.NOW)
        assert (end - begin).days == 1

    def test_hours_over_midnight(self) -> None:
        found = windows(EligibilityRules(train_hours=(Hours.parse("22:00-06:00"),)), self.NOW)
        assert [(begin.hour, end.hour) for begin, end in found] == [(22, 6)]

    def test_in_the_middle_of_a_window(self) -> None:
        first, last = windows(EligibilityRules(train_hours=(Hours.parse("20:00-22:00"),)), self.NOW)
        assert (first[0].minute, first[1].hour) == (30, 22)
        assert (last[0].hour, last[1].minute) == (20, 30)


def test_the_documents_say_in_which_form_it_left_and_escape_what_a_server_named(kit: Path, state: Path) -> None:
    found = read_status(kit, None)
    page, text = as_html(found), as_markdown(found)
    assert "<b>nosy" not in page
    assert "&lt;b&gt;nosy" in page
    assert r"\<b\>nosy" in text
    assert r"fedcore.w-max\|\`" in text
    for document in (page, text):
        assert "updates, masked" in document
        assert "There is no transcript yet" in document
    assert not any(word in page for word in ("href=", "src=", "<script", "@import", "url(")), "it asks nobody"


@pytest.mark.parametrize("ending", ["html", "md", "json"])
def test_the_command_exports(kit: Path, state: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"client.{ending}"
    done = CliRunner().invoke(app, ["client", "status", "--kit", str(kit), "--export", str(out)])
    assert done.exit_code == 0, done.output
    assert out.stat().st_mode & 0o077 == 0
    assert "nosy" in out.read_text()


def test_the_command_prints(kit: Path, state: Path) -> None:
    said = CliRunner().invoke(app, ["client", "status", "--kit", str(kit)]).output
    assert "config-not-allowed" in said
    assert "5.0 kB" in said
    found = json.loads(CliRunner().invoke(app, ["client", "status", "--kit", str(kit), "--json"]).output)
    assert found["runs"][0]["up"] == 5_000


def test_an_export_of_another_kind_is_refused(kit: Path, state: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["client", "status", "--kit", str(kit), "--export", str(tmp_path / "x.pdf")])
    assert done.exit_code != 0
    assert ".html, .md, .json" in " ".join(done.output.split())


def test_an_agent_that_ended_by_itself_leaves_the_reason(kit: Path, state: Path) -> None:
    ActivityFile(state).note("stopped", why="client-1 was revoked")
    assert "client-1 was revoked" in doing(read_status(kit, None))
