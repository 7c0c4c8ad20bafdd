"""A buffered run at a server: work that is given out, readiness that is heard, sums of whoever is ready."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from support.members import Failure, Member
from support.serverside import TINY, ScriptedApp, Site, events_of, site, until

from fedcore.federation import FederationFolder, Policy, provision
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.wire.forms import our_version
from fedcore.wire.presence import WORK_HEADER, WORK_OVER, JoinIn, WorkState
from fedcore.wire.uploads import WithdrawalReason, WithdrawIn
from server_app.runs.app.messages import Replies

ALL = [1, 2, 3, 4]
BUFFERED = {
    "asynchrony": "buffered",
    "buffer-size": 3,
    "max-corrupt": 0.0,
    "key-agreement": "x25519",
    "max-staleness": 2,
}
READY = WorkState.READY


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return provision(
        tmp_path_factory.mktemp("buffered-federation") / "fed",
        name="testing",
        clients=len(ALL),
        now=datetime.now(UTC),
        hosts=["127.0.0.1"],
        policy=Policy.own(len(ALL), min_cohort=3, min_threshold=2),
    )


@pytest.fixture
async def here(federation: FederationFolder, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(federation, tmp_path) as made:
        for member in made.members.values():
            member.local.by = float(member.id)
            member.local.examples = member.id
        yield made


@pytest.fixture
def model() -> ModelState:
    return ModelState.from_arrays({"weight": np.linspace(-1, 1, 60).astype(np.float32)})


async def sum_of(members: list[Member]) -> None:
    """These take the exchange that is open, with what they have ready."""
    await asyncio.gather(*(member.enter() for member in members))
    await asyncio.gather(*(member.secure() for member in members))


async def work_of(members: list[Member]) -> None:
    await asyncio.gather(*(member.take_work() for member in members))


async def ready(members: list[Member]) -> None:
    await asyncio.gather(*(member.say(READY) for member in members))


def mean_of(answer: object, model: ModelState) -> float:
    """By how much the reply differs from the model."""
    assert isinstance(answer, Replies), answer
    state = answer.replies[0].model()
    assert state is not None
    return float(np.mean(state["weight"] - model["weight"]))


def moved(model: ModelState, by: float) -> ModelState:
    return ModelState.from_arrays({"weight": model["weight"] + np.float32(by)})


async def first_sum(here: Site, app: ScriptedApp, model: ModelState) -> object:
    """Everybody trains from the first version; the first three are ready, and summed."""
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await work_of(members)
    await ready(members[:3])
    await sum_of(members[:3])
    return await asked


async def test_a_model_does_not_wait_for_the_slowest_and_the_slow_count_later_and_less(
    here: Site, model: ModelState
) -> None:
    run, app = await here.begin(BUFFERED)
    first = await first_sum(here, app, model)
    assert mean_of(first, model) == pytest.approx((1 * 1 + 2 * 2 + 3 * 3) / 6, abs=1e-3)
    second_model = moved(model, 5.0)
    asked = asyncio.create_task(app.exchange(second_model, ALL))
    one, two, three, slow = here.members.values()
    await work_of([one, two])
    await slow.say(READY)
    await ready([one, two])
    await sum_of([one, two, slow])
    second = await asked
    # The update of client 4 counts 1 / sqrt(2), its examples count in full.
    expected = (1 * 1 + 2 * 2 + 4 * 4 / math.sqrt(2)) / 7
    assert mean_of(second, second_model) == pytest.approx(expected, abs=1e-3)
    assert isinstance(second, Replies)
    assert second.replies[0].metrics["staleness_max"] == 1.0
    shown = await here.finish(run, app, second_model)
    done = events_of(shown, "exchange-done")
    assert [event["staleness"] for event in done] == [
        {"client-1": 0, "client-2": 0, "client-3": 0},
        {"client-1": 0, "client-2": 0, "client-4": 1},
    ]
    waiting = [event for event in events_of(shown, "stage") if event["stage"] == "ready"]
    assert (waiting[0]["done"], waiting[0]["expected"]) == (0, 3)
    assert {event["exchange"] for event in waiting} == {1, 2}, "of the exchange that they wait for"
    assert three.work is not None
    assert min(done[1]["bytes_down"].values()) > (one.base.stat().st_size), "the model of the work is counted"


async def test_an_evaluation_does_not_wait_for_whoever_trains(here: Site, model: ModelState) -> None:
    run, app = await here.begin({**BUFFERED, "min-clients": 3})
    await first_sum(here, app, model)
    asked = asyncio.create_task(app.exchange(moved(model, 1.0), ALL, message_type="evaluate"))
    idle = list(here.members.values())[:3]
    await sum_of(idle)
    assert isinstance(await asked, Replies)
    shown = await here.finish(run, app)
    assert events_of(shown, "exchange-done")[1]["survivors"] == ["client-1", "client-2", "client-3"]


async def test_who_gives_up_or_goes_frees_its_place(here: Site, model: ModelState) -> None:
    run, app = await here.begin({**BUFFERED, "concurrency": 3})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    book = here.services.work
    await until(lambda: len(book.busy) == 3)
    at_work = [member for member in members if member.id in book.busy]
    (other,) = (member for member in members if member.id not in book.busy)
    await work_of(at_work)
    gone = at_work[0]
    await gone.say(WorkState.GIVEN_UP, WithdrawIn(reason=WithdrawalReason.POLICY, check="too-long"))
    await other.take_work()
    assert gone.id not in book.busy, "it is not given the same version again"
    await ready([*at_work[1:], other])
    await sum_of([*at_work[1:], other])
    await asked
    shown = await here.finish(run, app)
    (dropped,) = events_of(shown, "dropped")
    assert (dropped["client"], dropped["stage"]) == (f"client-{gone.id}", "train")
    assert "too-long" in dropped["reason"]


async def test_who_gives_up_since_the_server_did_not_know_of_its_work_is_given_the_same_version_again(
    here: Site, model: ModelState
) -> None:
    """It says no reason of its own: a server that had just started did not let it have the model."""
    run, app = await here.begin(BUFFERED)
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await work_of(members)
    for member in members:
        await member.say(WorkState.GIVEN_UP)
        member.work = None
    await work_of(members)
    await ready(members[:3])
    await sum_of(members[:3])
    await asked
    await here.finish(run, app)


async def test_where_too_few_are_left_for_a_buffer_the_run_ends_and_does_not_wait_for_them(
    here: Site, model: ModelState
) -> None:
    run, app = await here.begin(BUFFERED)
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = list(here.members.values())
    await work_of(members)
    for member in members[:2]:
        await member.say(WorkState.GIVEN_UP, WithdrawIn(reason=WithdrawalReason.POLICY, check="too-long"))
    answer = await asked
    assert " 3 " in str(answer)
    shown = await here.finish(run, app)
    assert [event["client"] for event in events_of(shown, "dropped")] == ["client-1", "client-2"]


async def test_what_is_too_old_comes_to_nothing(here: Site, model: ModelState) -> None:
    run, app = await here.begin({**BUFFERED, "max-staleness": 0})
    await first_sum(here, app, model)
    asked = asyncio.create_task(app.exchange(moved(model, 1.0), ALL))
    members = list(here.members.values())
    await work_of(members)  # client 4 again, which had not ended
    await ready(members[1:])
    await sum_of(members[1:])
    await asked
    shown = await here.finish(run, app)
    (dropped,) = events_of(shown, "dropped")
    assert dropped["client"] == "client-4"
    assert "1 versions ago" in dropped["reason"]


async def test_nobody_fetches_a_version_that_it_was_not_given(here: Site, model: ModelState) -> None:
    run, app = await here.begin({**BUFFERED, "concurrency": 3})
    asked = asyncio.create_task(app.exchange(model, ALL))
    await until(lambda: len(here.services.work.busy) == 3)
    (other,) = (member for member in here.members.values() if member.id not in here.services.work.busy)
    with pytest.raises(Failure) as refused:
        await other.ask("GET", f"/v1/runs/{run}/versions/0/model")
    assert refused.value.problem.kind == "not-found"
    await end(asked)


async def test_a_new_server_hears_from_the_clients_what_they_have(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    """The server ends while two updates wait and two clients train; no update is in two sums."""
    async with site(federation, tmp_path) as before:
        run, app = await before.begin(BUFFERED)
        await first_sum(before, app, model)
        second = moved(model, 5.0)
        asked = asyncio.create_task(app.exchange(second, ALL))
        held = {}
        members = list(before.members.values())
        await work_of(members[:3])
        await ready(members[:2])
        held = {member.id: (member.work, member.base, member.task) for member in members}
        await until(lambda: before.services.work.book is not None and len(before.services.work.book.ready) == 2)
        await end(asked)
    async with site(federation, tmp_path) as after:
        await until(lambda: bool(after.apps) and after.apps[-1].start is not None)
        app = after.apps[-1]
        again = await app.exchange(model, ALL)
        assert isinstance(again, Replies), "out of the journal"
        asked = asyncio.create_task(app.exchange(second, ALL))
        for member in after.members.values():
            member.work, member.base, member.task = held[member.id]
            assert member.work is not None
            assert member.work.version is not None
            state = READY if member.id < 3 else WorkState.TRAINING
            work = {"run": run, "version": member.work.version, "state": state}
            sha256 = AppBundle.from_folder(TINY).sha256
            await member.ask(
                "POST",
                "/v1/join",
                JoinIn.model_validate({"app_sha256": sha256, "version": our_version(), "work": work}),
            )
        one, two, three, _ = after.members.values()
        await three.say(READY)
        await sum_of([one, two, three])
        assert isinstance(await asked, Replies)
        shown = await after.finish(run, app)
    assert shown.status == "finished", shown.reason
    assert [event["survivors"] for event in events_of(shown, "exchange-done")] == [
        ["client-1", "client-2", "client-3"]
    ] * 2
    assert len({(m[0].version.number, i) for i, m in held.items() if m[0] and m[0].version and i < 4}) == 3


async def test_who_asks_after_the_run_is_told_that_nobody_waits_for_its_work(here: Site, model: ModelState) -> None:
    run, app = await here.begin(BUFFERED)
    await first_sum(here, app, model)
    slow = here.members[4]

    async def asks(of: str) -> str | None:
        return (await slow.ask("GET", f"/v1/task?work={of}&version=0")).headers.get(WORK_HEADER)

    assert await asks(run) is None
    await here.finish(run, app, model)
    assert await asks(run) == WORK_OVER
    assert await asks("another") is None
