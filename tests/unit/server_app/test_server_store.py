"""Writes that come together share a commit, and nothing else."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from fedcore.errors import ConfigurationError, ConflictingMessage, IllegalTransition
from server_app.storage.store import SCHEMA_VERSION, Store


@pytest.fixture
async def store(tmp_path: Path):
    store = await Store.open(tmp_path / "state.sqlite")
    settings = {"aggregation": "secure", "app": "tiny", "app_sha256": "a" * 64, "run_config": {}, "settings": {}}
    await store.add_run(run="run", **settings)
    await store.add_exchange("run", 1, stage="advertise", server_round=1, attempt=1, cohort=[1, 2])
    yield store
    await store.close()


def count_commits(store: Store) -> list[int]:
    commits: list[int] = []
    event.listen(store._engine.sync_engine, "commit", lambda connection: commits.append(1))
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
        store.move_exchange("run", 1, "input", "unmask"),
        store.add_receipt("run", 1, "update", 3, b"c" * 32),
        store.move_exchange("run", 1, "advertise", "share"),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        type(None),
        ConflictingMessage,
        IllegalTransition,
        type(None),
        type(None),
    ]
    for client, digest in ((1, b"a"), (2, b"b"), (3, b"c")):
        await store.add_receipt("run", 1, "update", client, digest * 32)
    await store.move_exchange("run", 1, "share", "input")


async def test_a_caller_that_is_cancelled_leaves_the_others_their_commit(store: Store) -> None:
    tasks = [asyncio.create_task(store.add_receipt("run", 1, "unmask", client, b"d" * 32)) for client in range(1, 9)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 7


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "again.sqlite")
    await asyncio.gather(*(store.remember_client(i, "a" * 64, "1") for i in range(1, 6)))
    await store.close()
    again = await Store.open(tmp_path / "again.sqlite")
    assert set(await again.installed_apps()) == {1, 2, 3, 4, 5}
    await again.close()


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("PRAGMA user_version = 99", "has schema version 99"),
        ("CREATE TABLE runs (run TEXT)", "does not say which schema version it has"),
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
