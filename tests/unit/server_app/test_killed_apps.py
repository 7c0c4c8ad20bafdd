"""A ServerApp that is killed while an exchange is open: the run goes on to its end, and the queue behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from support.serverside import ScriptedApp, Site, events_of, site, until

from fedcore.federation import FederationFolder
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from server_app.runs.app.messages import Replies
from server_app.runs.app.process import AppKilled

ALL = [1, 2, 3, 4]
STEPS = ("", "advertise", "share", "receive", "upload", "sign", "unmask")
"""The step that nobody has taken yet when the app is killed; before the first one nobody has asked for the task."""


async def kill(here: Site, app: ScriptedApp) -> ScriptedApp:
    """Kill a ServerApp, as the kernel does that runs out of memory; the one that is started in its place."""
    number = len(here.apps)
    app.death = AppKilled("signal 9")
    app.crashed.set()
    await until(lambda: len(here.apps) > number and here.apps[number].start is not None)
    return here.apps[number]


async def taken_up(here: Site, app: ScriptedApp, model: ModelState) -> asyncio.Task[object]:
    """Ask for the exchange again that was open; once it is led again."""
    asked: asyncio.Task[object] = asyncio.create_task(app.exchange(model, ALL))
    await until(lambda: here.application.queue.exchange is not None and here.application.queue.exchange.is_led)
    return asked


async def steps(here: Site, *, since: str = "", until_: str = "") -> None:
    """What all members do from one step of an exchange to another; `since` is done."""
    names = STEPS[1:]
    first = names.index(since) if since else 0
    last = names.index(until_) if until_ else len(names)
    for name in names[first:last]:
        await asyncio.gather(*(getattr(member, name)() for member in here.members.values()))


async def assert_all_is_well(here: Site, run: str, app: ScriptedApp, model: ModelState) -> None:
    """The run ends, the one behind it begins and can be stopped, and the server is ready all the while."""
    waiting = (await here.submit()).run
    number = len(here.apps)
    ended = await here.finish(run, app, model)
    assert ended.status == "finished", ended.reason
    assert len(events_of(ended, "exchange-done")) == 1
    assert events_of(ended, "exchange-failed") == []
    await until(lambda: len(here.apps) > number)
    assert (await here.http.get("/readyz")).status_code == 200
    stopped = await here.operator("POST", f"/v1/runs/{waiting}/cancel")
    assert stopped.json()["status"] == "cancelled"
    assert here.application.queue.trouble == ""


@pytest.mark.parametrize("killed_before", STEPS)
async def test_a_secure_exchange_goes_on_in_the_stage_in_which_its_app_was_killed(
    here: Site, model: ModelState, killed_before: str
) -> None:
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    await until(lambda: here.application.queue.exchange is not None)
    if killed_before:
        await here.enter_all()
        await steps(here, until_=killed_before)
    again = await kill(here, app)
    await end(asked)
    asked = await taken_up(here, again, model)
    if not killed_before:
        await here.enter_all()
    await steps(here, since=killed_before)
    answer = await asked
    assert isinstance(answer, Replies)
    mean = answer.replies[0].model()
    assert mean is not None
    np.testing.assert_allclose(mean["weight"], model["weight"] + 1, atol=0.01)
    await assert_all_is_well(here, run, again, mean)


@pytest.mark.parametrize("killed", [1, 3])
async def test_a_run_ends_however_often_its_app_was_killed_in_one_exchange(
    here: Site, model: ModelState, killed: int
) -> None:
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    await here.enter_all()
    for _ in range(killed):
        app = await kill(here, app)
        await end(asked)
        asked = await taken_up(here, app, model)
    await steps(here)
    await asked
    await assert_all_is_well(here, run, app, model)


async def test_a_run_can_be_stopped_whose_app_was_killed(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    await here.enter_all()
    app = await kill(here, app)
    await end(asked)
    asked = await taken_up(here, app, model)
    stopped = await here.operator("POST", f"/v1/runs/{run}/cancel")
    assert stopped.json()["status"] == "cancelled"
    await end(asked)


async def test_a_plain_exchange_goes_on(federation: FederationFolder, tmp_path: Path, model: ModelState) -> None:
    async with site(federation, tmp_path) as here:
        run, app = await here.begin({"aggregation": "plain"})
        asked = asyncio.create_task(app.exchange(model, ALL))
        members = await here.enter_all()
        await members[0].plain()
        app = await kill(here, app)
        await end(asked)
        asked = await taken_up(here, app, model)
        await asyncio.gather(*(member.plain() for member in members[1:]))
        await asked
        await assert_all_is_well(here, run, app, model)
