"""Downloads and uploads that take long, or whose line pauses; no time passes but where a test says so."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.members import Member, parts_of
from support.serverside import ScriptedApp, Site, events_of, site, until

from fedcore.federation import FederationFolder
from fedcore.monitoring.line_speed import LineSpeed
from fedcore.state import ModelState
from fedcore.wire.presence import HeartbeatIn
from fedcore.wire.tasks import Task
from server_app.members.lines import Lines
from server_app.runs.app.messages import ExchangeRefused, Replies

ALL = [1, 2, 3, 4]
STEP, TRAIN, TRANSFER, LIVENESS, PAUSE = 10.0, 100.0, 200.0, 15.0, 60.0
SETTINGS = {
    "transfer-seconds": TRANSFER,
    "step-seconds": STEP,
    "train-seconds": TRAIN,
    "liveness-seconds": LIVENESS,
    "pause-seconds": PAUSE,
    "max-attempts": 1,
}


@pytest_asyncio.fixture
async def here(federation: FederationFolder, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(federation, tmp_path) as made:
        yield made


async def begun(here: Site, model: ModelState) -> tuple[str, ScriptedApp, asyncio.Task[object], list[Member]]:
    run, app = await here.begin(SETTINGS)
    asked = asyncio.create_task(app.exchange(model, ALL))
    return run, app, asked, await here.enter_all()


async def pass_time(here: Site, members: list[Member], seconds: float, received: int | None = None) -> None:
    """Time in which members send heartbeats; the server looks at its exchange after each."""
    for _ in range(round(seconds / 5.0)):
        for member in members:
            await say(member, received)
            received = received + 1 if received is not None else None
        here.clock.advance(5.0)
        await asyncio.sleep(0)
        here.application.queue.exchange.clients.changed.ring()  # type: ignore[union-attr]
        await asyncio.sleep(0.02)
        for member in members:
            await say(member, received)


async def say(member: Member, received: int | None = None) -> None:
    assert member.task is not None
    beat = HeartbeatIn(run=member.task.run, exchange=member.task.exchange, received=received)
    await member.ask("POST", "/v1/heartbeat", beat)


def stage(here: Site) -> str:
    exchange = here.application.queue.exchange
    return exchange.stages.current if exchange is not None else ""


async def test_a_download_is_waited_for_as_long_as_it_makes_progress(here: Site, model: ModelState) -> None:
    run, app, asked, members = await begun(here, model)
    await pass_time(here, members, 6 * STEP, received=1000)
    assert stage(here) == "advertise"
    await asyncio.gather(*(member.secure() for member in members))
    answer = await asked
    assert isinstance(answer, Replies)
    assert events_of(await here.finish(run, app), "dropped") == []


@pytest.mark.parametrize("grows", [True, False], ids=["for ever", "not at all"])
async def test_a_download_that_does_not_end_ends_the_stage_and_is_named(
    here: Site, model: ModelState, grows: bool
) -> None:
    run, app, asked, members = await begun(here, model)
    slow = members.pop()
    await asyncio.gather(*(member.advertise() for member in members))
    received, began = 100, here.clock()
    while stage(here) == "advertise":
        await asyncio.gather(*(say(member) for member in members), say(slow, received))
        received += grows
        here.clock.advance(5.0)
        here.application.queue.exchange.clients.changed.ring()  # type: ignore[union-attr]
        await asyncio.sleep(0.02)
    seconds = here.clock() - began
    # The clock goes on while the server looks, the longer the busier the machine is.
    assert seconds >= TRANSFER if grows else STEP <= seconds < TRANSFER
    exchange = here.application.queue.exchange
    assert exchange is not None
    reason = exchange.clients.reasons[slow.id]
    for named in ("download", "transfer-seconds"):
        assert named in reason
    for step in (Member.share, Member.receive, Member.upload, Member.sign, Member.unmask):
        await asyncio.gather(*(step(member) for member in members))
    assert isinstance(await asked, Replies)
    await here.finish(run, app)


async def test_who_fetches_nothing_has_the_time_of_a_step(here: Site, model: ModelState) -> None:
    """It has the model and is alive, and does not go on."""
    _, _, asked, members = await begun(here, model)
    await pass_time(here, members, 3 * STEP)
    answer = await asked
    assert isinstance(answer, ExchangeRefused)
    assert "advertise" in answer.reason
    assert "download" not in answer.reason


@pytest.mark.parametrize(("free", "is_made"), [(1 << 30, True), (40_000, False)], ids=["room", "no room"])
async def test_smaller_forms_of_models_take_what_a_round_leaves_of_the_disk(
    here: Site, monkeypatch: pytest.MonkeyPatch, free: int, is_made: bool
) -> None:
    monkeypatch.setattr("server_app.runs.run_context.LEAST_MODEL", 0)
    usage = shutil.disk_usage(here.services.spool.folder)._replace(free=free + here.services.spool.reserve_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    for client in ALL:
        here.services.lines.note_report(client, LineSpeed(down=1e5, up=1e5, round_trip=0.1))
    run, app = await here.begin()
    for number in (1, 2):
        model = ModelState.from_arrays({"weight": np.full(4000, number, np.float32)})
        asked = asyncio.create_task(app.exchange(model, ALL))
        await asyncio.gather(*(member.secure() for member in await here.enter_all()))
        assert isinstance(await asked, Replies)
    made = list(here.services.settings.work_dir.rglob("*.change"))
    await here.finish(run, app)
    assert bool(made) == is_made


async def test_a_pause_in_the_midst_of_an_upload_does_not_lose_the_client(here: Site, model: ModelState) -> None:
    run, app, asked, members = await begun(here, model)
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    await until(lambda: stage(here) == "input")
    paused, others = members[0], members[1:]
    body, manifest = paused.vector()
    await paused.send(body)
    await pass_time(here, others, PAUSE - 10.0)
    await paused.send(body)
    await paused.put("manifest", manifest)
    await asyncio.gather(*(member.upload() for member in others))
    await asyncio.gather(*(member.sign() for member in members))
    await asyncio.gather(*(member.unmask() for member in members))
    answer = await asked
    assert isinstance(answer, Replies)
    assert events_of(await here.finish(run, app), "dropped") == []


@pytest.mark.parametrize("is_known", [True, False], ids=["known line", "unknown line"])
async def test_an_upload_over_a_slow_line_has_more_time_than_others(
    here: Site, model: ModelState, is_known: bool
) -> None:
    run, app, asked, members = await begun(here, model)
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    await until(lambda: stage(here) == "input")
    slow, others = members[0], members[1:]
    await asyncio.gather(*(member.upload() for member in others))
    body, manifest = slow.vector()
    if is_known:
        here.services.lines.note_report(slow.id, LineSpeed(up=len(body) / TRAIN))
    await slow.send(body)
    if is_known:
        await pass_time(here, members, STEP + TRAIN + STEP)
        assert stage(here) == "input", "twice the time that its bytes take"
        await slow.put("manifest", manifest)
    else:
        # No second passes after the stage has ended: the next one has only a step's time.
        while stage(here) == "input":
            await pass_time(here, members, 5.0)
    for step in (Member.sign, Member.unmask):
        await asyncio.gather(*(step(member) for member in (members if is_known else others)))
    assert isinstance(await asked, Replies)
    assert bool(events_of(await here.finish(run, app), "dropped")) != is_known


async def test_a_slow_download_takes_no_time_from_the_training(here: Site, model: ModelState) -> None:
    run, app = await here.begin({**SETTINGS, "aggregation": "plain"})
    asked = asyncio.create_task(app.exchange(model, ALL))
    slow, *others = await here.enter_all()
    await asyncio.gather(*(member.plain() for member in others))
    await pass_time(here, [slow], TRAIN / 2, received=100)
    await pass_time(here, [slow], TRAIN - STEP)
    assert not asked.done()
    await slow.plain()
    assert not isinstance(await asked, ExchangeRefused)
    assert events_of(await here.finish(run, app), "dropped") == []


async def train_all(here: Site, members: list[Member]) -> None:
    await asyncio.gather(*(member.enter() for member in members))
    await asyncio.gather(*(member.secure() for member in members))


@pytest.mark.parametrize("choice", ["wait", "leave-out"])
@pytest.mark.parametrize("seconds", [TRANSFER / 2, TRANSFER * 2], ids=["given time", "too slow"])
async def test_slow_lines_are_told_before_the_round(here: Site, model: ModelState, choice: str, seconds: float) -> None:
    """One of five takes longer than a step, or than any transfer may."""
    size = 8412
    here.services.lines.note_report(4, LineSpeed(down=size / seconds, up=1e9))
    run, app = await here.begin({**SETTINGS, "slow-lines": choice, "min-clients": 3})
    asked = asyncio.create_task(app.exchange(model, ALL))
    is_left_out = choice == "leave-out" or seconds > TRANSFER
    members = [member for member in here.members.values() if not (is_left_out and member.id == 4)]
    await train_all(here, members)
    assert isinstance(await asked, Replies)
    assert (4 in here.services.lines.why_not_asked(here.clock())) == is_left_out
    record = await here.finish(run, app)
    (warning,) = events_of(record, "warning")
    assert "client-4" in warning["line"]
    (exchange,) = events_of(record, "exchange")
    assert ("client-4" not in exchange["cohort"]) == is_left_out


async def test_a_slow_line_is_asked_if_too_few_others_are_there(here: Site, model: ModelState) -> None:
    here.services.lines.note_report(4, LineSpeed(down=1.0))
    run, app = await here.begin({**SETTINGS, "slow-lines": "leave-out", "min-clients": 4})
    asked = asyncio.create_task(app.exchange(model, ALL))
    await train_all(here, list(here.members.values()))
    assert isinstance(await asked, Replies)
    record = await here.finish(run, app)
    assert len(events_of(record, "warning")) == 1
    assert not here.services.lines.why_not_asked(here.clock())


async def test_an_agent_tells_its_line_as_it_asks_for_a_task(here: Site) -> None:
    member = here.members[1]
    await member.join("0" * 64)
    told = LineSpeed(down=250_000.0, up=1.2e9, round_trip=0.3)
    await member.ask("GET", f"/v1/task?wait=0&line={told.to_query()}")
    assert here.services.lines.speed(member.id) == told
    await member.ask("GET", "/v1/task?wait=0&line=nonsense,-1,inf,5")
    assert here.services.lines.speed(member.id) == LineSpeed()


@pytest.mark.parametrize("begins", [True, False], ids=["in its upload", "before it"])
async def test_silence_has_an_end(here: Site, model: ModelState, begins: bool) -> None:
    run, app, asked, members = await begun(here, model)
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    await until(lambda: stage(here) == "input")
    silent, others = members[0], members[1:]
    if begins:
        body, _ = silent.vector()
        await silent.put("update/parts/0", next(iter(parts_of(body))))
    began = here.clock()
    exchange = here.application.queue.exchange
    assert exchange is not None
    while silent.id not in exchange.clients.reasons:
        await pass_time(here, others, 5.0)
    limit = PAUSE if begins else LIVENESS
    assert limit <= here.clock() - began <= limit + 15.0
    assert ("pause-seconds" in exchange.clients.reasons[silent.id]) == begins
    for step in (Member.upload, Member.sign, Member.unmask):
        await asyncio.gather(*(step(member) for member in others))
    assert isinstance(await asked, Replies)
    await here.finish(run, app)


def test_who_would_miss_its_stage_again_rests_and_is_tried_again() -> None:
    lines, now = Lines(), 1000.0
    line = "its line carries 1 kB a second"
    assert lines.note_late(1, "", needed=61.0, lost=60.0, now=now) == "", "once may be an accident"
    assert lines.note_late(2, line, needed=90.0, lost=60.0, now=now)
    assert set(lines.resting(60.0, now)) == {2}
    assert set(lines.resting(100.0, now)) == set(), "a run with more time asks it"
    assert lines.note_late(1, "", needed=61.0, lost=60.0, now=now)
    assert set(lines.resting(60.0, now + 599.0)) == {1, 2}
    assert set(lines.resting(60.0, now + 600.0)) == set()
    lines.note_late(2, line, needed=90.0, lost=60.0, now=now + 700.0)
    assert set(lines.resting(60.0, now + 700.0 + 1199.0)) == {2}, "twice as long"
    lines.note_on_time(2)
    assert set(lines.resting(60.0, now + 701.0)) == set()


def test_how_fast_a_line_is() -> None:
    lines = Lines()
    lines.note_up(1, 100, 0.1)
    assert lines.speed(1).up is None, "too little to tell"
    lines.note_up(1, 1_000_000, 10.0)
    lines.note_down(1, 2_000_000, 10.0)
    assert (lines.speed(1).up, lines.speed(1).down) == (100_000.0, 200_000.0)
    lines.note_up(1, 30_000, 0.3)
    assert lines.speed(1).up == 100_000.0, "a small update is there before the line is full"
    lines.note_report(1, LineSpeed(round_trip=0.3))
    lines.note_up(1, 30_000, 1.2)
    assert lines.speed(1).up == 100_000.0


async def test_a_line_is_judged_by_the_update_that_comes_next(here: Site, model: ModelState) -> None:
    """A first update has twice the bytes of the next one, for which the line is quick enough."""

    async def two_rounds(**settings: object) -> list[dict[str, Any]]:
        run, app = await here.begin({**SETTINGS, "min-clients": 3, "aggregation": "secure", **settings})

        async def opened(server_round: int) -> Task:
            def task() -> Task | None:
                exchange = here.application.queue.exchange
                return exchange.task if exchange is not None else None

            await until(lambda: (it := task()) is not None and (it.run, it.server_round) == (run, server_round))
            found = task()
            assert found is not None
            return found

        for number in (1, 2):
            start = ModelState.from_arrays(
                {name: (number * array).astype(array.dtype) for name, array in model.items()}
            )
            asked = asyncio.create_task(app.exchange(start, ALL))
            await train_all(here, [here.members[one] for one in (await opened(number)).cohort])
            assert isinstance(await asked, Replies)
        return events_of(await here.finish(run, app), "exchange-done")

    wide, narrow = (max(end["update_bytes"].values()) for end in await two_rounds())
    assert narrow < 0.7 * wide
    here.services.lines.note_report(4, LineSpeed(up=(wide + narrow) / 2 / STEP))
    judged = await two_rounds(**{"slow-lines": "leave-out"})
    assert ["client-4" in end["survivors"] for end in judged] == [False, True]
