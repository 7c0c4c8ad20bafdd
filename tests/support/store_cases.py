"""What a store does on any database; test modules import all of it beside a fixture `open_store` of their own."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event, text

from fedcore.errors import ConflictingMessage, IllegalTransition, LeaseLost, StorageDamaged
from fedcore.wire.events import AppPrinted, stamp
from fedcore.wire.operator import RunStatus
from server_app.storage.store import Lease, Store
from tests.support.raising import raises

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OpenStore = Callable[[], Awaitable[Store]]
RUN: dict[str, Any] = {"aggregation": "secure", "app": "tiny", "app_sha256": "a" * 64, "run_config": {}, "settings": {}}
OPENED: dict[str, Any] = {"stage": "advertise", "server_round": 1, "attempt": 1, "cohort": [1, 2], "task": {"seed": 7}}


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[Store]:
    store = await open_store()
    await store.add_run(run="run", **RUN)
    await store.add_exchange("run", 1, **OPENED)
    return store


def count_commits(store: Store) -> list[int]:
    commits: list[int] = []
    event.listen(store.database.engine.sync_engine, "commit", lambda connection: commits.append(1))
    return commits


async def test_receipts_that_come_together_share_a_commit(store: Store) -> None:
    commits = count_commits(store)
    await asyncio.gather(*(store.add_receipt("run", 1, "advertisement", client, b"d" * 32) for client in range(1, 51)))
    assert len(commits) < 10
    with pytest.raises(ConflictingMessage):
        await store.add_receipt("run", 1, "advertisement", 50, b"e" * 32)
    await store.add_receipt("run", 1, "advertisement", 50, b"d" * 32)


async def test_a_write_that_fails_takes_no_other_with_it(store: Store) -> None:
    await store.add_receipt("run", 1, "update", 1, b"a" * 32)
    results = await asyncio.gather(
        store.add_receipt("run", 1, "update", 2, b"b" * 32),
        store.add_receipt("run", 1, "update", 1, b"x" * 32),
        store.close_stage("run", 1, "input", "unmask", {}),
        store.add_run(run="run", **RUN),
        store.add_receipt("run", 1, "update", 3, b"c" * 32),
        store.close_stage("run", 1, "advertise", "share", {}),
        return_exceptions=True,
    )
    kinds = [type(result).__name__ for result in results]
    ok = "NoneType"
    assert kinds == [ok, "ConflictingMessage", "IllegalTransition", "IntegrityError", ok, ok]
    for client, digest in ((1, b"a"), (2, b"b"), (3, b"c")):
        await store.add_receipt("run", 1, "update", client, digest * 32)
    await store.close_stage("run", 1, "share", "input", {})


async def test_a_caller_that_is_cancelled_leaves_the_others_their_commit(store: Store) -> None:
    tasks = [asyncio.create_task(store.add_receipt("run", 1, "unmask", client, b"d" * 32)) for client in range(1, 9)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 7


async def test_what_was_acknowledged_is_there_for_another_store(store: Store, open_store: OpenStore) -> None:
    await asyncio.gather(*(store.remember_client(i, "a" * 64, "1") for i in range(1, 6)))
    assert {row.id for row in await (await open_store()).joined_clients()} == {1, 2, 3, 4, 5}


def one_more(stored: str) -> str:
    return stored.replace("7", "8", 1)


def no_json(stored: str) -> str:
    return stored.replace("{", "[", 1)


def another_sum(stored: str) -> str:
    return stored[:-1] + ("\t" if stored[-1] == " " else " ")


@pytest.mark.parametrize("change", [one_more, no_json, another_sum])
async def test_a_text_that_the_disk_changed_is_not_read(store: Store, change: Callable[[str], str]) -> None:
    """A number with another digit would read well; the run would go on with it."""
    value = {"loss": [0.7, math.nan], "name": "Zürich"}
    await store.open_step("run", 1, b"d" * 32, {"of": 7})
    await store.answer_step("run", 1, value)
    (step,) = await store.steps("run")
    assert str(step.answer) == str(value)
    await rewrite_answer(store, change)
    with raises(StorageDamaged, check="changed-text"):
        await store.steps("run")


async def test_texts_are_json_to_other_versions_and_theirs_are_read(store: Store) -> None:
    await store.open_step("run", 1, b"d" * 32, {"of": 7})
    await store.answer_step("run", 1, {"loss": 0.7})
    texts: list[str] = []

    def of_before(stored: str) -> str:
        texts.append(stored)
        return json.dumps(json.loads(stored))

    await rewrite_answer(store, of_before)
    (step,) = await store.steps("run")
    assert step.answer == {"loss": 0.7}
    assert texts[0].strip() == '{"loss": 0.7}', "and the sum"


async def rewrite_answer(store: Store, change: Callable[[str], str]) -> None:
    """Change the only answer in the journal, as a disk or an earlier version would."""
    async with store.database.engine.begin() as connection:
        stored = (await connection.execute(text("SELECT answer FROM steps"))).scalar_one()
        await connection.execute(text("UPDATE steps SET answer = :changed"), {"changed": change(stored)})


async def test_messages_come_back_whole_and_in_the_order_of_acceptance(store: Store) -> None:
    for step, client in (("advertisement", 2), ("advertisement", 1), ("share", 1), ("withdrawal", 2)):
        await store.add_receipt("run", 1, step, client, b"d" * 32, f'{{"{step}": {client}}}'.encode())
    await store.add_receipt("run", 1, "advertisement", 1, b"d" * 32, b"the same digest, so the first stays")
    await store.add_receipt("run", 2, "advertisement", 1, b"d" * 32, b"another exchange")
    history = await store.history("run", 1)
    assert [(row.step, row.client) for row in history.receipts] == [
        ("advertisement", 2),
        ("advertisement", 1),
        ("share", 1),
        ("withdrawal", 2),
    ]
    assert history.receipts[1].body == b'{"advertisement": 1}'
    assert bytes(history.receipts[1].digest) == b"d" * 32


async def test_a_stage_is_closed_once_with_whom_it_gave_up(store: Store) -> None:
    closing = ("run", 1, "advertise", "share", {"2": {"reason": "no answer"}})
    await store.close_stage(*closing)
    await store.close_stage(*closing)
    for other in (("run", 1, "advertise", "share", {}), ("run", 1, "advertise", "input", closing[4])):
        with pytest.raises(IllegalTransition):
            await store.close_stage(*other)
    await store.close_stage("run", 1, "share", "input", {})
    closings = (await store.history("run", 1)).closings
    assert [(row.number, row.stage, row.gone) for row in closings] == [(1, "advertise", closing[4]), (2, "share", {})]
    assert closings[0].closed_at <= closings[1].closed_at
    row = await store.exchange("run", 1)
    assert row is not None
    assert row.stage == "input"


async def test_an_exchange_ends_once_with_its_result(store: Store) -> None:
    await store.save_partial_sum("run", 1, {"key": "runs/run/exchanges/1/sum-1", "clients": [1]})
    end = ("run", 1, "advertise", "done", {"loss": math.inf})
    await store.end_exchange(*end)
    await store.end_exchange(*end)
    with pytest.raises(IllegalTransition):
        await store.end_exchange("run", 1, "advertise", "failed", {})
    with pytest.raises(IllegalTransition):
        await store.end_exchange("run", 1, "advertise", "done", {"loss": 1.0})
    (row,) = await store.exchanges_of("run")
    assert (row.stage, row.result, row.task) == ("done", {"loss": math.inf}, {"seed": 7})
    assert row.folded == {"key": "runs/run/exchanges/1/sum-1", "clients": [1]}


async def test_an_exchange_is_opened_once(store: Store) -> None:
    await store.add_exchange("run", 1, **OPENED)
    with pytest.raises(ConflictingMessage):
        await store.add_exchange("run", 1, **{**OPENED, "task": {"seed": 8}})
    assert await store.cohort("run", 1) == [1, 2]
    assert await store.cohort("run", 2) is None


async def test_the_journal_keeps_requests_and_answers(store: Store) -> None:
    await store.open_step("run", 1, b"1" * 32, {"kind": "nodes"})
    await store.open_step("run", 1, b"1" * 32, {"kind": "nodes"})
    with raises(ConflictingMessage, numbers=(1,)):
        await store.open_step("run", 1, b"2" * 32, {"kind": "exchange"})
    await store.open_step("run", 2, b"2" * 32, {"kind": "exchange"})
    await store.answer_step("run", 1, {"nodes": [1, 2]})
    steps = await store.steps("run")
    assert [(row.number, bytes(row.digest)[:1], row.answer) for row in steps] == [
        (1, b"1", {"nodes": [1, 2]}),
        (2, b"2", None),
    ]
    for number, step in ((2, 2), (3, 3)):
        await store.add_exchange("run", number, **{**OPENED, "step": step})
        await store.add_receipt("run", number, "advertisement", 1, b"d", b"{}")
    await store.drop_steps_from("run", 2)
    assert [row.number for row in await store.steps("run")] == [1]
    left = [(row.exchange, row.step) for row in await store.exchanges_of("run")]
    assert left == [(1, 0), (2, 0), (3, 0)], "what they cost is still known"
    assert (await store.history("run", 2)).receipts == []


async def test_runs_are_listed_changed_and_forgotten(store: Store) -> None:
    for number in range(3):
        await store.add_run(run=f"r{number}", submitted_at=float(number), **RUN)
    assert [row.run for row in await store.list_runs(2)] == ["r2", "r1"]
    assert [row.run for row in await store.list_runs(5, before="r1")] == ["r0", "run"]
    assert await store.list_runs(5, before="unknown") == []
    assert await store.start_run("r1", started_at=5.0)
    assert not await store.start_run("r1")
    assert [row.run for row in await store.list_runs(5, status=RunStatus.RUNNING)] == ["r1"]
    await store.update_run("r1", rounds=3, epsilon=0.5)
    await store.add_events("r1", [stamp(1, 0.0, NOW, AppPrinted(line="x\0y"))])
    await store.add_events("r1", [stamp(1, 0.0, NOW, AppPrinted(line="x\0y"))])
    assert not await store.forget_run("r1"), "it is open"
    assert await store.end_run("r1", RunStatus.FAILED, "bad \0 \ud800 text", seconds=1.0, time=NOW)
    row = await store.run("r1")
    assert row is not None
    assert (row.rounds, row.epsilon, row.started_at, row.ended_at) == (3, 0.5, 5.0, NOW.timestamp())
    assert row.reason == "bad \ufffd ? text"
    assert [item.seq for item in await store.events("r1", 0)] == [1, 2]
    assert await store.forget_run("r1")
    assert await store.run("r1") is None
    assert await store.events("r1", 0) == []


async def test_rosters_are_kept_by_version(store: Store) -> None:
    for version in (1, 2, 3, 2):
        await store.add_roster(version, f"roster {version}")
    assert await store.rosters_after(1) == {2: "roster 2", 3: "roster 3"}


async def take(store: Store, holder: str, seconds: float = 60.0) -> Lease | None:
    return await store.take_lease("leader", holder=holder, url=f"https://{holder}", seconds=seconds)


async def test_one_of_many_takes_a_lease(store: Store, open_store: OpenStore) -> None:
    stores = [store, await open_store()]
    taken = await asyncio.gather(*(take(stores[number % 2], f"server-{number}") for number in range(8)))
    (lease,) = [each for each in taken if each is not None]
    found = await store.lease("leader")
    assert found is not None
    assert (found[0].holder, found[0].url) == (lease.holder, f"https://{lease.holder}")
    assert 55 < found[1] <= 60
    assert await store.lease("another") is None


async def test_a_lease_is_renewed_given_and_taken_again(store: Store, open_store: OpenStore) -> None:
    first, second = store, await open_store()
    a = await take(first, "a")
    assert a is not None
    assert await take(second, "b") is None
    again = await take(first, "a")
    assert again is not None
    assert again.generation == a.generation + 1, "a server that was started again takes its own at once"
    with pytest.raises(LeaseLost):
        await first.renew_lease(a, 60.0)
    await first.renew_lease(again, 60.0)
    await first.give_lease(again)
    b = await take(second, "b", seconds=-1.0)
    assert b is not None
    assert await take(first, "a"), "b's has run out"
    with pytest.raises(LeaseLost):
        await second.give_lease(b)


async def test_nothing_is_written_after_another_took_over(store: Store, open_store: OpenStore) -> None:
    first, second = store, await open_store()
    a = await take(first, "a", seconds=-1.0)
    first.fence(a)
    await first.add_receipt("run", 1, "advertisement", 1, b"d" * 32)
    b = await take(second, "b")
    second.fence(b)
    writes = (
        first.add_receipt("run", 1, "advertisement", 2, b"d" * 32),
        first.close_stage("run", 1, "advertise", "share", {}),
        first.end_run("run", RunStatus.FAILED, "", seconds=1.0, time=NOW),
    )
    assert [type(result) for result in await asyncio.gather(*writes, return_exceptions=True)] == [LeaseLost] * 3
    assert len((await second.history("run", 1)).receipts) == 1
    await second.close_stage("run", 1, "advertise", "share", {})
    assert await take(first, "a") is None, "which needs no lease, and does not wait"


async def test_a_taking_waits_for_the_write_that_is_under_way(store: Store, open_store: OpenStore) -> None:
    first, second = store, await open_store()
    first.fence(await take(first, "a", seconds=-1.0))
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(connection: Any) -> None:
        inside.set()
        await go_on.wait()
        await connection.execute(text("UPDATE runs SET reason = 'in time' WHERE run = 'run'"))

    writing = asyncio.create_task(first.database.write(slow))
    await inside.wait()
    taking = asyncio.create_task(take(second, "b"))
    await asyncio.wait({taking}, timeout=0.2)
    assert not taking.done()
    go_on.set()
    await writing
    assert await taking is not None
    row = await second.run("run")
    assert row is not None
    assert row.reason == "in time"
