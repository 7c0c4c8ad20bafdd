"""A run goes on where it was: after a stop, a kill, the death of its ServerApp, and when its operator resumes it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.loopback import NEVER
from support.members import Failure, Member, withdraw_all
from support.serverside import ScriptedApp, Site, events_of, site, until

from fedcore.federation import FederationFolder
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from server_app.polling import Bell
from server_app.runs.app.messages import ExchangeRefused, Replies
from server_app.runs.app.process import AppKilled
from tests.support.raising import raises

ALL = [1, 2, 3, 4]


async def round_of(here: Site, app: ScriptedApp, model: ModelState) -> ModelState:
    """One exchange in which everybody takes part; the new model."""
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure() for member in members))
    return mean_of(await asked)


def mean_of(answer: object) -> ModelState:
    assert isinstance(answer, Replies)
    mean = answer.replies[0].model()
    assert mean is not None
    return mean


async def started(here: Site, number: int = 0) -> ScriptedApp:
    await until(lambda: len(here.apps) > number and here.apps[number].start is not None)
    return here.apps[number]


def same(one: ModelState, other: ModelState) -> None:
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])


async def test_a_model_that_is_the_mean_takes_no_room_of_its_own(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    mean = await round_of(here, app, model)
    copy = ModelState.from_arrays({name: value.copy() for name, value in mean.items()})
    asked = asyncio.create_task(app.exchange(copy, ALL))
    members = await here.enter_all()
    data = here.services.settings.data_dir
    (handed,) = (here.services.settings.work_dir / run / "handed").iterdir()
    assert handed.samefile(data / f"runs/{run}/exchanges/1/mean")
    await asyncio.gather(*(member.secure() for member in members))
    await asked


async def test_a_stopped_run_goes_on_and_its_app_hears_the_same(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    async with site(federation, tmp_path) as first:
        run, app = await first.begin()
        app_sha256 = (await first.show(run)).app_sha256
        waiting = (await first.submit()).run
        mean = await round_of(first, app, model)
        copy = ModelState.from_arrays({name: value.copy() for name, value in mean.items()})
        (first.services.settings.work_dir / "left-by-a-kill").mkdir()
    assert app.stopped
    async with site(federation, tmp_path) as second:
        assert (await second.show(waiting)).status == "waiting"
        again = await started(second)
        assert not (second.services.settings.work_dir / "left-by-a-kill").exists()
        again.on_line("printed after the restart")
        same(mean_of(await again.exchange(model, ALL)), copy)
        await asyncio.gather(*(member.join(app_sha256) for member in second.members.values()))
        after = await round_of(second, again, copy)
        ended = await second.finish(run, again, after)
        assert ended.status == "finished"
        assert [item.seq for item in ended.events] == list(range(1, len(ended.events) + 1))
        seconds = [item.seconds for item in ended.events]
        assert seconds == sorted(seconds)
        assert [item["exchange"] for item in events_of(ended, "exchange-done")] == [1, 2]
        assert len(events_of(ended, "started")) == len(events_of(ended, "resumed")) == 1
        (resumed,) = events_of(ended, "resumed")
        assert resumed["steps"] == 1
        while await second.services.store.steps(run):  # noqa: ASYNC110 - a finished run needs no journal
            await asyncio.sleep(0.01)
        await second.operator("POST", f"/v1/runs/{waiting}/cancel")


@pytest.fixture
def keeps_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for large models, and for the wide fields of first exchanges."""
    monkeypatch.setattr("server_app.exchanges.secure.LEAST_MODEL", 0)
    monkeypatch.setattr("server_app.exchanges.secure.MOST_WORDS", 100)


async def two_rounds(here: Site, model: ModelState, settings: Mapping[str, Any]) -> tuple[str, list[ModelState]]:
    """A run, and copies of what its app sent and got."""
    run, app = await here.begin(settings)
    models = [model]
    for _ in range(2):
        mean = await round_of(here, app, models[-1])
        models.append(ModelState.from_arrays({name: value.copy() for name, value in mean.items()}))
    return run, models


def kept_of(here: Site, run: str, exchange: int) -> list[str]:
    folder = here.services.settings.data_dir / "runs" / run / "exchanges" / str(exchange)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("settings", [{}, {"download-bits": 16}])
async def test_an_earlier_mean_is_made_again_from_its_sum(
    federation: FederationFolder, tmp_path: Path, model: ModelState, keeps_sums: None, settings: Mapping[str, Any]
) -> None:
    async with site(federation, tmp_path) as first:
        run, models = await two_rounds(first, model, settings)
        app_sha256 = (await first.show(run)).app_sha256
        assert [kept_of(first, run, number) for number in (1, 2)] == [["words"], ["mean", "words"]]
    async with site(federation, tmp_path) as second:
        again = await started(second)
        same(mean_of(await again.exchange(models[0], ALL)), models[1])
        assert kept_of(second, run, 1) == ["mean", "words"]
        same(mean_of(await again.exchange(models[1], ALL)), models[2])
        assert [kept_of(second, run, number) for number in (1, 2)] == [["words"], ["mean", "words"]]
        await asyncio.gather(*(member.join(app_sha256) for member in second.members.values()))
        ended = await second.finish(run, again, await round_of(second, again, models[2]))
        assert ended.status == "finished"


async def test_a_damaged_sum_makes_no_mean(
    federation: FederationFolder, tmp_path: Path, model: ModelState, keeps_sums: None
) -> None:
    async with site(federation, tmp_path) as first:
        run, models = await two_rounds(first, model, {})
    path = tmp_path / "data" / "runs" / run / "exchanges" / "1" / "words"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    async with site(federation, tmp_path) as second:
        again = await started(second)
        asked = asyncio.create_task(again.exchange(models[0], ALL))
        ended = await second.follow(run)
        assert ended.status == "failed"
        assert "exchange 1" in ended.reason
        await end(asked)


async def test_an_open_exchange_goes_on_after_a_kill(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    async with site(federation, tmp_path) as first:
        run, app = await first.begin()
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = await first.enter_all()
        await asyncio.gather(*(member.secure(until="upload") for member in members))
        await members[0].upload()
        # As after kill -9: nobody has the time to write down how things ended.
        copy = tmp_path / "crashed"
        await asyncio.to_thread(shutil.copytree, tmp_path / "data", copy)
        await end(asked)
    (tmp_path / "again").mkdir()
    copy.rename(tmp_path / "again" / "data")
    async with site(federation, tmp_path / "again") as second:
        app = await started(second)
        for member in members:
            member.http = second.http
        with pytest.raises(Failure) as refused:
            await members[0].get("survivors")
        assert refused.value.problem.kind == "busy", "until the app has asked for it again"
        asked = asyncio.create_task(app.exchange(model, ALL))
        await until(lambda: second.application.queue.exchange is not None)
        await asyncio.gather(*(member.upload() for member in members[1:]))
        await asyncio.gather(*(member.sign() for member in members))
        await asyncio.gather(*(member.unmask() for member in members))
        ended = await second.finish(run, app, mean_of(await asked))
    assert ended.status == "finished"
    (done,) = events_of(ended, "exchange-done")
    assert len(done["survivors"]) == 4
    assert len(events_of(ended, "exchange")) == 1


async def test_a_client_that_waits_hears_at_once_of_an_exchange_that_is_taken_up(
    federation: FederationFolder, tmp_path: Path, model: ModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all others would wait for it until its poll ends, which here it does not."""
    wait = Bell.wait
    monkeypatch.setattr(Bell, "wait", lambda bell, _: wait(bell, NEVER))
    async with site(federation, tmp_path) as first:
        _, app = await first.begin()
        asked = asyncio.create_task(app.exchange(model, ALL))
        await first.members[1].enter()
        copy = tmp_path / "crashed"
        await asyncio.to_thread(shutil.copytree, tmp_path / "data", copy)
        await end(asked)
    (tmp_path / "again").mkdir()
    copy.rename(tmp_path / "again" / "data")
    async with site(federation, tmp_path / "again") as second:
        app = await started(second)
        waiting = asyncio.create_task(second.members[2].ask("GET", "/v1/task?wait=30"))
        await until(lambda: second.services.presence.silent_for(2) == 0.0)
        asked = asyncio.create_task(app.exchange(model, ALL))
        assert (await waiting).status_code == 200
        await end(asked)


async def test_another_request_than_before_interrupts_the_run(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    async with site(federation, tmp_path) as first:
        run, app = await first.begin()
        await round_of(first, app, model)
    async with site(federation, tmp_path) as second:
        app = await started(second)
        asked = asyncio.create_task(app.exchange(model, [1, 2, 3]))
        ended = await second.follow(run)
        await end(asked)
    assert ended.status == "interrupted"
    assert "its request 1 differs in nodes" in ended.reason


async def test_an_app_that_is_killed_is_started_anew_three_times(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    mean = await round_of(here, app, model)
    for number in range(1, 4):
        app.death = AppKilled("signal 9")
        app.crashed.set()
        app = await started(here, number)
        same(mean_of(await app.exchange(model, ALL)), mean)
    app.death = AppKilled("signal 9")
    app.crashed.set()
    ended = await here.follow(run)
    assert (ended.status, len(here.apps)) == ("failed", 4)
    assert len(events_of(ended, "resumed")) == 3
    assert len(events_of(ended, "exchange-done")) == 1


async def test_an_app_that_is_started_anew_is_warned_of_once(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    """What each of its lives leaves out is the same, after its death and after that of the server."""

    def leave_hidden(app: ScriptedApp) -> None:
        (app.folder / "files").mkdir()
        (app.folder / "files" / ".hidden").touch()

    async with site(federation, tmp_path) as first:
        run, app = await first.begin()
        leave_hidden(app)
        app.death = AppKilled("signal 9")
        app.crashed.set()
        leave_hidden(await started(first, 1))
    async with site(federation, tmp_path) as second:
        app = await started(second)
        leave_hidden(app)
        ended = await second.finish(run, app, model)
    (warning,) = events_of(ended, "warning")
    assert warning["line"].startswith("1 files of the ServerApp were left out")


async def test_a_cancelled_run_leaves_its_last_model_and_can_be_resumed(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    mean = await round_of(here, app, model)
    asked = asyncio.create_task(app.exchange(mean, ALL))
    await here.enter_all()
    cancelled = await here.operator("POST", f"/v1/runs/{run}/cancel")
    await end(asked)
    assert cancelled.json()["status"] == "cancelled"
    left = await here.operator("GET", f"/v1/runs/{run}/model")
    assert len(left.content) == cancelled.json()["model"]["size"]
    await here.application.queue.resume(run)
    again = await started(here, 1)
    same(mean_of(await again.exchange(model, ALL)), mean)
    ended = await here.finish(run, again, await round_of(here, again, mean))
    assert ended.status == "finished"
    assert [item["exchange"] for item in events_of(ended, "exchange-done")] == [1, 3], "no number comes twice"
    with raises(Exception, kind="bad-configuration", match="finished"):
        await here.application.queue.resume(run)


async def test_what_was_refused_at_last_is_asked_again_by_a_resumed_run(here: Site, model: ModelState) -> None:
    run, app = await here.begin({"max-attempts": 1})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members: list[Member] = await here.enter_all()
    await withdraw_all(members)
    assert isinstance(await asked, ExchangeRefused)
    app.fail("no round")
    assert (await here.follow(run)).status == "failed"
    await here.application.queue.resume(run)
    again = await started(here, 1)
    mean = await round_of(here, again, model)
    assert (await here.finish(run, again, mean)).status == "finished"


async def test_an_app_that_asks_for_nothing_is_noticed(here: Site) -> None:
    run, _ = await here.begin({"app-seconds": 60.0})
    here.clock.advance(11)
    while not events_of(await here.show(run), "warning"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    here.clock.advance(50)
    ended = await here.follow(run)
    assert ended.status == "failed"
    assert "raise app-seconds" in ended.reason
