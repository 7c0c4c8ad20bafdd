"""The store over SQLite: writes that come together share a commit, and nothing else; and what may befall its file."""

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from operator import methodcaller
from pathlib import Path

import pytest
from sqlalchemy import event
from support.store_cases import *  # noqa: F403
from support.store_cases import RUN, OpenStore

from fedcore.errors import ConfigurationError, StorageDamaged, StorageFull, StorageUnavailable
from server_app.storage import engines
from server_app.storage.store import SCHEMA_VERSION, Store
from tests.support.raising import raises


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[OpenStore]:
    stores: list[Store] = []

    async def opened() -> Store:
        stores.append(await Store.open(tmp_path / "state.sqlite"))
        return stores[-1]

    yield opened
    for store in stores:
        await store.close()


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("PRAGMA user_version = 99", r"\b99\b"),
        ("CREATE TABLE runs (run TEXT)", "--data-dir"),
    ],
)
async def test_a_database_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, statement: str, named: str
) -> None:
    path = tmp_path / "state.sqlite"

    def seen() -> tuple[object, list[object]]:
        with closing(sqlite3.connect(path)) as database:
            tables = database.execute("SELECT name, sql FROM sqlite_master").fetchall()
            return database.execute("PRAGMA user_version").fetchone()[0], tables

    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
    before = seen()
    with pytest.raises(ConfigurationError, match=named) as refused:
        await Store.open(path)
    assert str(path) in str(refused.value)
    assert "--data-dir" in str(refused.value)
    assert seen() == before


async def test_a_database_carries_its_version_and_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    for _ in range(2):
        await (await Store.open(path)).close()
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


async def test_a_database_that_another_process_locks_may_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PRAGMAS", (*engines.PRAGMAS, "PRAGMA busy_timeout = 20"))
    store = await Store.open(tmp_path / "state.sqlite")
    with closing(sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        tried: list[object] = []
        event.listen(store.database.engine.sync_engine, "checkout", lambda connection, *_: tried.append(connection))
        adding = [store.add_run(run=f"run-{number}", **RUN) for number in range(20)]
        results = await asyncio.gather(*adding, return_exceptions=True)
        assert {type(result) for result in results} == {StorageUnavailable}
        assert len(tried) == 1, "one by one, each would wait for the lock again"
        assert "locked" in str(results[0])
        assert await store.count_waiting() == 0, "reading goes on"
        other.execute("ROLLBACK")
    await store.add_run(run="run-1", **RUN)
    await store.close()


async def test_a_full_disk_is_named_and_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(tmp_path / "state.sqlite")
    await store.close()
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
    with monkeypatch.context() as patch:
        patch.setattr(engines, "PRAGMAS", (*engines.PRAGMAS, f"PRAGMA max_page_count = {pages}"))
        store = await Store.open(tmp_path / "state.sqlite")
        with pytest.raises(StorageFull):
            await store.add_run(run="run", **{**RUN, "app": "a" * 100_000})
        await store.close()
    store = await Store.open(tmp_path / "state.sqlite")
    await store.add_run(run="run", **{**RUN, "app": "a" * 100_000})
    await store.close()


async def test_a_read_only_database_may_be_written_to_again(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "state.sqlite")
    for setting in ("1", "0"):
        # On the pool's only connection so far.
        await store.database.read(methodcaller("exec_driver_sql", f"PRAGMA query_only = {setting}"))
        if setting == "1":
            with pytest.raises(StorageUnavailable, match="read-only"):
                await store.add_run(run="run", **RUN)
    await store.add_run(run="run", **RUN)
    await store.close()


@pytest.mark.parametrize("first", [0, 4096])
async def test_a_damaged_database_says_what_to_do(tmp_path: Path, first: int) -> None:
    path = tmp_path / "state.sqlite"
    store = await Store.open(path)
    await asyncio.gather(*(store.add_run(run=f"run-{number}", **RUN) for number in range(200)))
    await store.close()
    content = bytearray(path.read_bytes())
    content[first:] = b"\x5a" * (len(content) - first)
    path.write_bytes(content)
    with pytest.raises(StorageDamaged, match=r"docs/[a-z/]+\.md") as refused:
        await (await Store.open(path)).list_runs(300)
    assert isinstance(refused.value, ConfigurationError)


@pytest.mark.parametrize("seed", range(30))
async def test_callers_that_are_cancelled_anywhere_leave_no_connection_behind(tmp_path: Path, seed: int) -> None:
    chance, before = random.Random(seed), set(threading.enumerate())
    store = await Store.open(tmp_path / "state.sqlite")
    asking = [asyncio.create_task(ask()) for ask in 4 * (store.ping, store.count_waiting, store.joined_clients)]
    for _ in range(chance.randrange(60)):
        await asyncio.sleep(0.0005 if chance.random() < 0.3 else 0.0)
    for task in asking:
        task.cancel()
    await store.close()  # before the callers know
    for task in asking:
        with suppress(asyncio.CancelledError):
            await task
    for thread in set(threading.enumerate()) - before:  # each connection of aiosqlite has one
        await asyncio.to_thread(thread.join, 30.0)
        assert not thread.is_alive(), "a connection was lost"


async def test_nothing_begins_after_the_end(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "state.sqlite")
    late = asyncio.create_task(store.ping())
    await store.close()
    for asking in (late, store.ping(), store.add_run(run="run", **RUN)):
        with raises(StorageUnavailable, check="stopping"):
            await asking
    await store.close()
