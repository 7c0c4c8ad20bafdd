"""Downloads and uploads that take long, or whose line pauses; no time passes but where a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.members import Member, parts_of
from support.serverside import ScriptedApp, Site, events_of, site, until

from fedcore.federation import FederationFolder
from fedcore.state import ModelState
from fedcore.wire.presence import HeartbeatIn
from server_app.members.lines import Lines
from server_app.runs.app.messages import ExchangeRefused, Replies

ALL = [1, 2, 3, 4]
STEP, TRAIN, LIVENESS, PAUSE = 10.0, 100.0, 15.0, 60.0
SETTINGS = {
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
    received, began = 1000, here.clock()
    while stage(here) == "advertise":
        await asyncio.gather(*(say(member) for member in members), say(slow, received))
        received += 1000 * grows
        here.clock.advance(5.0)
        here.application.queue.exchange.clients.changed.ring()  # type: ignore[union-attr]
        await asyncio.sleep(0.02)
    seconds = here.clock() - began
    # The clock goes on while the server looks, the longer the busier the machine is.
    assert seconds >= STEP + TRAIN if grows else STEP <= seconds < STEP + TRAIN
    exchange = here.application.queue.exchange
    assert exchange is not None
    reason = exchange.clients.reasons[slow.id]
    for named in ("download", "train-seconds", "step-seconds"):
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
    lines.note_up(1, 100, 10.0)
    assert lines.speed(1).up is None, "too little to tell"
    lines.note_up(1, 1_000_000, 10.0)
    lines.note_down(1, 2_000_000, 10.0)
    assert (lines.speed(1).up, lines.speed(1).down) == (100_000.0, 200_000.0)
