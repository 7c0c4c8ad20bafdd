"""A database that refuses for a while: nothing ends in silence, and all goes on when it is back."""

from __future__ import annotations

import pytest
from support.members import Failure
from support.serverside import Site, events_of, until
from support.storage_faults import LOCKED, READ_ONLY, refusing

from fedcore.state import ModelState
from server_app.runs import event_log


async def not_ready(here: Site) -> str:
    with pytest.raises(Failure) as refused:
        await here.operator("GET", "/readyz")
    return refused.value.problem.detail


@pytest.mark.parametrize("text", [LOCKED, READ_ONLY])
async def test_a_run_starts_once_the_database_is_back(here: Site, text: str) -> None:
    async def take_up() -> None:
        await until(lambda: bool(refused) and here.application.queue.trouble != "")

    run = (await here.submit()).run
    await until(lambda: len(here.apps) == 1 and here.apps[0].start is not None)
    waiting = (await here.submit()).run
    with refusing(here.services.store, text) as refused:
        here.apps[0].finish()
        await take_up()
        assert here.application.queue.alive
        if text == READ_ONLY:
            assert "read-only" in await not_ready(here)
    assert (await here.follow(run)).status == "finished"
    await until(lambda: len(here.apps) == 2 and here.apps[1].start is not None)
    here.apps[1].finish()
    assert (await here.follow(waiting)).status == "finished"
    assert (await here.operator("GET", "/readyz")).status_code == 200


async def test_no_event_is_lost_while_nothing_can_be_written(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    with refusing(here.services.store, READ_ONLY) as refused:
        for number in range(50):
            app.on_line(f"line {number}")
        await until(lambda: bool(refused) and "read-only" in here.application.queue.trouble)
    ended = await here.finish(run, app, model)
    assert [item["line"] for item in events_of(ended, "log")] == [f"line {number}" for number in range(50)]
    assert [item.seq for item in ended.events] == list(range(1, len(ended.events) + 1))


async def test_what_waits_in_memory_is_bounded(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MOST_WAITING", 5)
    run, app = await here.begin()
    with refusing(here.services.store, READ_ONLY) as refused:
        app.on_line("first")
        await until(lambda: bool(refused))
        for number in range(50):
            app.on_line(f"line {number}")
    ended = await here.finish(run, app)
    assert len(events_of(ended, "log")) in (5, 6)  # five wait; the writer may have the first in hand
    assert [item.seq for item in ended.events] == list(range(1, len(ended.events) + 1))


async def test_a_cancel_says_that_it_cannot_be_written_down_and_holds(here: Site) -> None:
    run, _ = await here.begin()
    with refusing(here.services.store, READ_ONLY):
        with pytest.raises(Failure) as refused:
            await here.operator("POST", f"/v1/runs/{run}/cancel")
        assert "cancelled" in refused.value.problem.detail
        assert "read-only" in refused.value.problem.detail
    assert (await here.follow(run)).status == "cancelled"


async def test_a_stop_does_not_wait_for_the_database(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.runs.worker.STOP_SECONDS", 0.05)
    await here.begin()
    with refusing(here.services.store, READ_ONLY):
        await here.application.queue.stop()
