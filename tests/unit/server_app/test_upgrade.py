"""A database goes up to the version that is read, and down again, with its rows."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from fedcore.errors import ConfigurationError
from server_app.storage.schema import migrate, upgrade
from server_app.storage.store import SCHEMA_VERSION, Store
from server_app.storage.tables import Base
from tests.support.raising import raises

VERSION_2 = Path(__file__).parents[2] / "vectors" / "server_v2.sql"
TABLES = ("clients", "runs", "exchanges", "receipts", "records", "events")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "server.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(VERSION_2.read_text())
    return path


def rows_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as database:
        return {table: sorted(database.execute(f"SELECT * FROM {table}").fetchall()) for table in TABLES}


async def test_a_server_does_not_upgrade_by_itself_and_says_how(old: Path) -> None:
    before = rows_of(old)
    with raises(ConfigurationError, match="upgrade", numbers=(2, SCHEMA_VERSION)):
        await Store.open(old)
    assert rows_of(old) == before


def test_version_2_goes_up_and_down_with_its_rows(old: Path) -> None:
    before = rows_of(old)
    assert f"from version 2 to version {SCHEMA_VERSION}" in upgrade(old)[-1]
    assert upgrade(old) == [f"the database has version {SCHEMA_VERSION} already; nothing was done"]
    upgrade(old, 2)
    after = rows_of(old)
    # An open run cannot go on, and is told so; all else is as it was.
    ended = next(row for row in after["runs"] if row[1] == "running")
    assert ended[2] == "interrupted"
    assert "Submit it again" in ended[3]
    after["runs"] = [(*row[:2], "running", "", *row[4:]) if row[1] == "running" else row for row in after["runs"]]
    assert after == before
    with closing(sqlite3.connect(old)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,), "which version 2 looks for"


def test_a_copy_is_made_first(old: Path) -> None:
    before = rows_of(old)
    upgrade(old)
    (copy,) = old.parent.glob("server-version2-*.sqlite3")
    assert rows_of(copy) == before
    assert copy.stat().st_mode & 0o777 == 0o600


async def test_what_was_there_is_read_after_the_upgrade(old: Path) -> None:
    await asyncio.to_thread(upgrade, old)
    store = await Store.open(old)
    finished, waiting = await store.run("finished"), await store.next_waiting()
    assert finished is not None
    assert (finished.model_size, finished.rounds, finished.epsilon) == (5000, 0, None)
    assert waiting is not None
    assert waiting.run == "waiting"
    receipts = (await store.history("finished", 1)).receipts
    assert [(row.seq, row.client, row.body) for row in receipts] == [(1, 2, b""), (2, 1, b"")]
    assert [item.event.kind for item in await store.events("finished", 0)] == ["log", "ended"]
    assert await store.rosters_after(0) == {}
    await store.close()


def columns_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Table -> name, type, whether NOT NULL and place in the primary key of its columns, by name."""
    with closing(sqlite3.connect(path)) as database:
        shown = {table: database.execute(f"PRAGMA table_info({table})").fetchall() for table in TABLES}
    return {table: sorted((*row[1:4], row[5]) for row in rows) for table, rows in shown.items()}


def test_an_upgraded_database_has_the_tables_of_a_new_one(old: Path) -> None:
    upgrade(old)
    engine = create_engine(f"sqlite:///{old}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_the_first_revision_makes_what_version_2_made(old: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.sqlite3"
    engine = create_engine(f"sqlite:///{made}")
    with engine.begin() as connection:
        migrate(connection, 0, 2)
    engine.dispose()
    assert columns_of(made) == columns_of(old)


def test_a_downgraded_database_has_the_tables_that_it_had(old: Path) -> None:
    before = columns_of(old)
    upgrade(old)
    upgrade(old, 2)
    assert columns_of(old) == before


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION + 1])
def test_what_it_cannot_lead_is_refused_by_name(old: Path, version: int) -> None:
    with closing(sqlite3.connect(old)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    with raises(ConfigurationError, numbers=(version, 2, SCHEMA_VERSION)):
        upgrade(old)
    with raises(ConfigurationError, numbers=(2, SCHEMA_VERSION, 1)):
        upgrade(old, 1)
