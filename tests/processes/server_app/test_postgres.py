"""The store over a real PostgreSQL does what it does over SQLite, and outlives its absence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text
from support.postgres import Cluster, postgres
from support.store_cases import *  # noqa: F403
from support.store_cases import RUN, OpenStore

from fedcore.errors import ConfigurationError, StorageDamaged, StorageFull, StorageUnavailable
from server_app.storage.schema import migrate, upgrade
from server_app.storage.store import Store
from server_app.storage.tables import SCHEMA_VERSION, Base
from tests.support.raising import raises

__all__ = ["postgres"]


@pytest.fixture
def url(postgres: Cluster) -> str:
    return postgres.create()


@pytest.fixture
async def open_store(url: str) -> AsyncIterator[OpenStore]:
    stores: list[Store] = []

    async def opened() -> Store:
        stores.append(await Store.open(url))
        return stores[-1]

    yield opened
    for store in stores:
        await store.close()


async def test_two_servers_may_make_the_tables_at_once(open_store: OpenStore) -> None:
    first, *others = await asyncio.gather(*(open_store() for _ in range(4)))
    await first.add_run(run="run", **RUN)
    assert [await other.count_waiting() for other in others] == [1, 1, 1]


async def test_the_store_outlives_its_database(postgres: Cluster, open_store: OpenStore) -> None:
    store = await open_store()
    await store.add_run(run="run", **RUN)
    postgres.stop()
    try:
        for asked in (store.ping(), store.run("run"), store.add_run(run="other", **RUN)):
            with pytest.raises(StorageUnavailable):
                await asked
    finally:
        postgres.start()
    assert await store.run("run") is not None
    await store.add_run(run="other", **RUN)
    assert await store.count_waiting() == 2


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("53100", StorageFull),
        ("53300", StorageUnavailable),
        ("57P01", StorageUnavailable),
        ("25006", StorageUnavailable),
        ("55P03", StorageUnavailable),
        ("58030", StorageUnavailable),
        ("XX001", StorageDamaged),
    ],
)
async def test_troubles_of_the_database_are_named(open_store: OpenStore, state: str, kind: type[Exception]) -> None:
    store = await open_store()
    raising = text(f"DO $$ BEGIN RAISE EXCEPTION 'secret detail' USING ERRCODE = '{state}'; END $$")
    with pytest.raises(kind) as raised:
        await store.database.execute(raising)
    assert "secret" not in str(raised.value)
    await store.ping()


async def test_a_database_that_is_not_there_is_named_without_the_password(postgres: Cluster) -> None:
    url = postgres.url("absent").replace("fedcore@", "fedcore:open-sesame@")
    with pytest.raises(StorageUnavailable, match='"absent"') as raised:
        await Store.open(url)
    assert "open-sesame" not in str(raised.value)


def test_the_previous_version_goes_up_and_down_with_its_rows(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate(connection, 0, 2)
        for statement in _rows_of_version_2():
            connection.execute(text(statement))
    before = _rows(engine)
    with raises(ConfigurationError, match="upgrade", numbers=(2,)):
        asyncio.run(Store.open(url))
    assert upgrade(url) == [f"the database was led from version 2 to version {SCHEMA_VERSION}"]
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    upgrade(url, 2)
    assert _rows(engine) == before
    engine.dispose()


async def test_nobody_upgrades_under_a_server_that_leads(url: str, open_store: OpenStore) -> None:
    store = await open_store()
    await store.take_lease("leader", holder="server-a", url="https://a", seconds=60.0)
    with pytest.raises(ConfigurationError, match=r"server-a \(https://a\) leads"):
        await asyncio.to_thread(upgrade, url, 2)


async def test_a_dump_goes_back_into_an_empty_database(
    postgres: Cluster, url: str, open_store: OpenStore, tmp_path: Path
) -> None:
    store = await open_store()
    await store.add_run(run="run", **RUN)
    names = [url_.replace("+psycopg", "") for url_ in (url, postgres.create())]
    dump = tmp_path / "fedcore.dump"
    postgres.command("pg_dump", "--format=custom", f"--file={dump}", names[0])
    postgres.command("pg_restore", "--no-owner", f"--dbname={names[1]}", str(dump))
    restored = await Store.open(names[1])
    assert [row.run for row in await restored.list_runs(5)] == ["run"]
    await restored.close()


def _rows_of_version_2() -> list[str]:
    moment = datetime(2026, 1, 2, tzinfo=UTC).isoformat()
    return [
        "INSERT INTO clients VALUES (1, 'aa', '0.1.0')",
        "INSERT INTO runs (run, status, reason, aggregation, app, app_sha256, run_config, settings, model_sha256, "
        "model_size) VALUES ('r1', 'finished', '', 'secure', 'digits', 'aa', '{}', '{}', 'bb', 5000)",
        "INSERT INTO exchanges VALUES ('r1', 1, 'done', 1, 1, '[1, 2]')",
        "INSERT INTO receipts VALUES ('r1', 1, 'advertisement', 2, '\\x02'), ('r1', 1, 'advertisement', 1, '\\x01')",
        f'INSERT INTO events VALUES (\'r1\', 1, 0.5, \'{moment}\', \'{{"kind"\\: "log", "line"\\: "x"}}\')',
    ]


def _rows(engine: Any) -> dict[str, list[Any]]:
    with engine.connect() as connection:
        tables = ("clients", "runs", "exchanges", "receipts", "events")
        return {table: sorted(map(str, connection.execute(text(f"SELECT * FROM {table}")))) for table in tables}
