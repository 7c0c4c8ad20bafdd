"""`fedcore runs`: find, show, follow, stop and save a run."""

from __future__ import annotations

import asyncio
import functools
import json
import tarfile
from pathlib import Path

import pytest
from support.operator import Bridge, operate
from support.serverside import TINY, Site

from client_app.operator.client import OperatorClient
from client_app.operator.download import export_run, fetch_model
from client_app.operator.resolve_run import resolve_run
from client_app.operator.run_follower import Screen, follow
from client_app.operator.runs import attach_to, print_logs, show_list, show_run, stop_run
from fedcore.errors import ConfigurationError, RunFailed, ServerUnreachable
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState, sha256_file
from fedcore.system.tracing import trace_name
from fedcore.wire.operator import RunIn
from tests.support.raising import raises


async def said(here: Site, capsys: pytest.CaptureFixture[str], what: functools.partial[None]) -> str:
    capsys.readouterr()
    await operate(here, what)
    return capsys.readouterr().out


async def test_a_run_is_named_by_what_is_known_of_it(here: Site) -> None:
    first, _ = await here.begin()
    second = (await here.submit()).run
    found = await operate(here, lambda client: [resolve_run(client, word) for word in (first, first[:6], "last")])
    assert found == [first, first, second]
    with raises(ConfigurationError, check="ambiguous", match="run-"):
        await operate(here, lambda client: resolve_run(client, "run-"))
    with raises(ConfigurationError, check="no-run", match="nothing"):
        await operate(here, lambda client: resolve_run(client, "nothing"))


async def test_the_list_and_one_of_it(here: Site, capsys: pytest.CaptureFixture[str]) -> None:
    run, app = await here.begin()
    waiting = (await here.submit()).run
    everything = {"limit": 5, "before": "", "status": ""}
    lines = (await said(here, capsys, functools.partial(show_list, as_json=False, **everything))).splitlines()
    assert lines[0].split() == ["RUN", "STATUS", "APP", "ROUNDS", "SUBMITTED", "LASTED", "EPSILON"]
    assert lines[1].startswith(f"{waiting}  waiting (number 1)")
    assert lines[2].startswith(f"{run}  running")
    shown = await said(here, capsys, functools.partial(show_run, word=run, as_json=False))
    assert "client-1                 waiting" in shown
    told = json.loads(await said(here, capsys, functools.partial(show_run, word=waiting, as_json=True)))
    assert told["position"] == 1
    assert told["settings"]["min-clients"] == 3
    assert {client["state"] for client in told["now"]["clients"]} == {"waiting"}
    with pytest.raises(ConfigurationError, match=r"--status.*'over'"):
        await operate(here, functools.partial(show_list, as_json=False, limit=1, before="", status="over"))
    app.fail("enough")


async def test_whoever_comes_back_sees_it_from_the_beginning(
    here: Site, model: ModelState, capsys: pytest.CaptureFixture[str]
) -> None:
    run, app = await here.begin()
    app.on_line("hello from the app")
    app.finish(model)
    await here.follow(run)
    lines = (
        await said(here, capsys, functools.partial(attach_to, word="last", first=1, out=None, as_json=True))
    ).splitlines()
    assert json.loads(lines[0]) == {"run": run, "trace_id": trace_name(run)}
    events = [json.loads(line) for line in lines[1:-1]]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert json.loads(lines[-1])["status"] == "finished"
    later = (
        await said(here, capsys, functools.partial(attach_to, word=run, first=3, out=None, as_json=True))
    ).splitlines()
    assert json.loads(later[1])["seq"] == 3


async def test_no_line_of_an_app_steers_the_operators_terminal(
    here: Site, model: ModelState, capsys: pytest.CaptureFixture[str]
) -> None:
    run, app = await here.begin()
    line = "\x1b[2J\x1b]0;title\x07 \x9b31m\ttabs stay"
    app.on_line(line)
    app.finish(model)
    await here.follow(run)
    for app_only in (False, True):
        shown = await said(here, capsys, functools.partial(print_logs, word=run, app_only=app_only, as_json=False))
        assert "\\x1b[2J" in shown
        assert "\ttabs stay" in shown
        assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    shown = await said(here, capsys, functools.partial(attach_to, word=run, first=1, out=None, as_json=False))
    assert not {"\x07", "\x9b"} & set(shown)
    assert "\x1b[2J" not in shown
    for what in (
        functools.partial(print_logs, word=run, app_only=True, as_json=True),
        functools.partial(attach_to, word=run, first=1, out=None, as_json=True),
    ):
        told = await said(here, capsys, what)
        assert not {"\x1b", "\x07", "\x9b"} & set(told)
        events = [json.loads(one)["event"] for one in told.splitlines() if '"log"' in one]
        assert [event["line"] for event in events] == [line], "a program reads it as it was"


async def test_a_run_that_failed_ends_the_following_as_it_ends_the_run(here: Site) -> None:
    run, app = await here.begin()
    app.fail("it raised")
    with pytest.raises(RunFailed, match=f"{run} .*raised$"):
        await operate(here, functools.partial(attach_to, word=run, first=1, out=None, as_json=True))


async def test_a_server_that_is_away_for_a_while_loses_nobody(
    here: Site, model: ModelState, capsys: pytest.CaptureFixture[str]
) -> None:
    run, app = await here.begin()
    bridge = Bridge(here, asyncio.get_running_loop())

    def work(client: object) -> list[int]:
        bridge.away = 3
        client.connect_seconds = 0.0  # type: ignore[attr-defined] - each request is tried once
        record, final = follow(client, run, Screen(True))  # type: ignore[arg-type]
        assert final.status == "finished"
        assert record.status == "finished"
        return [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()]

    app.finish(model)
    numbers = await operate(here, work, bridge)
    assert numbers == list(range(1, len(numbers) + 1)), "no event twice, none lost"


async def test_who_follows_a_run_leaves_a_frozen_server_within_the_time_of_two_leases(
    here: Site, model: ModelState
) -> None:
    run, app = await here.begin()
    bridge = Bridge(here, asyncio.get_running_loop(), frozen="https://frozen.example.org")

    def work(client: OperatorClient) -> None:
        assert [state.status for state in client.follow(run)][-1] == "finished"

    app.finish(model)
    await operate(here, work, bridge)
    assert bridge.patience
    assert max(bridge.patience) <= 20.0


async def test_no_run_is_submitted_twice(here: Site) -> None:
    bridge = Bridge(here, asyncio.get_running_loop(), away=2)
    bundle = AppBundle.from_folder(TINY)
    body = RunIn(app_sha256=bundle.sha256, files=dict(bundle.files))
    run = (await operate(here, lambda client: client.submit(body), bridge)).run
    assert bridge.asked == ["POST /v1/runs"] * 3, "where no server is, it is tried again"
    bridge.lost = 1
    with raises(ServerUnreachable, check="answer-lost"):
        await operate(here, lambda client: client.submit(body), bridge)
    page = await operate(here, lambda client: client.list_runs(limit=10))
    assert len(page.runs) == 2, "this one had come"
    assert page.runs[1].run == run


async def test_stopping(here: Site, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = await here.begin()
    waiting = (await here.submit()).run
    assert await said(here, capsys, functools.partial(stop_run, word=waiting, as_json=False)) == (
        f"run {waiting} cancelled\n"
    )
    assert await said(here, capsys, functools.partial(stop_run, word=run, as_json=False)) == f"run {run} cancelled\n"
    again = await said(here, capsys, functools.partial(stop_run, word=run, as_json=False))
    assert again == f"run {run} had ended already: cancelled\n"


async def test_the_model_and_the_events(
    here: Site, model: ModelState, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, app = await here.begin()
    out = tmp_path / "model.safetensors"
    with raises(ConfigurationError, check="no-model"):
        await operate(here, functools.partial(fetch_model, word=run, out=out, as_json=False))
    app.on_line("hello")
    ended = await here.finish(run, app, model)
    assert ended.model is not None
    text = await said(here, capsys, functools.partial(fetch_model, word=run, out=out, as_json=False))
    assert text.startswith(f"saved {out}: the final model of run {run}")
    told = json.loads(await said(here, capsys, functools.partial(fetch_model, word=run, out=out, as_json=True)))
    assert (told["kind"], told["sha256"]) == ("final", sha256_file(out))
    logs = await said(here, capsys, functools.partial(print_logs, word=run, app_only=False, as_json=False))
    assert "app: hello" in logs
    assert "ended: status finished" in logs
    only = await said(here, capsys, functools.partial(print_logs, word=run, app_only=True, as_json=False))
    assert [line.split(maxsplit=3)[3] for line in only.splitlines()] == ["hello"]


async def test_all_of_it_in_one_place(here: Site, model: ModelState, tmp_path: Path) -> None:
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))
    await asyncio.gather(*(member.secure() for member in await here.enter_all()))
    await asked
    (app.folder / "files").mkdir()
    (app.folder / "files" / "notes.txt").write_text("as the app wrote it")
    (app.folder / "results.json").write_text('{"server": {"1": {"loss": 0.5}}}')
    await here.finish(run, app, model)
    folder, packed = tmp_path / "kept", tmp_path / "kept.tar.gz"
    for out in (folder, packed):
        await operate(here, functools.partial(export_run, word=run, out=out, force=False, as_json=False))
    names = {"events.jsonl", "files", "model.safetensors", "results.json", "run.json", "transcript.jsonl"}
    assert {path.name for path in folder.iterdir()} == names
    with tarfile.open(packed) as tar:
        assert {Path(name).name for name in tar.getnames()} == names | {"notes.txt", f"run-{run}"}
    assert json.loads((folder / "run.json").read_text())["settings"]["min-clients"] == 3
    from client_app.commands.transcript_report import TranscriptSource, report

    authority = here.operator_kit.folder / "authority.pub"
    report(
        TranscriptSource(copy=folder / "transcript.jsonl", authority=authority), delta=1e-5, every=True, as_json=False
    )
    with pytest.raises(ConfigurationError, match=r"--out.*kept"):
        await operate(here, functools.partial(export_run, word=run, out=folder, force=False, as_json=False))
    await operate(here, functools.partial(export_run, word=run, out=folder, force=True, as_json=False))
    (folder / "notes.md").write_text("a person's own")
    with raises(ConfigurationError, check="not-own-folder"):
        await operate(here, functools.partial(export_run, word=run, out=folder, force=True, as_json=False))
    assert (folder / "notes.md").is_file()
