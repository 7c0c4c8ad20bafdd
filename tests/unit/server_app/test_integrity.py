"""A database that is not what was written: refused at the start, and noticed while the server runs."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from support.raising import raises
from support.serverside import Site

from fedcore.errors import StorageDamaged
from server_app.background import check_file
from server_app.operation.integrity import prepare
from server_app.storage.store import Store

HEADER, FRAME = 32, 24 + 4096


async def crashed(folder: Path, commits: int = 5) -> Path:
    """A database as a killed server leaves it: what was committed last is in its log alone."""
    live = folder / "live" / "server.sqlite3"
    live.parent.mkdir()
    store = await Store.open(live)
    for number in range(1, commits + 1):
        await store.remember_client(number, "ab" * 32, "1")
    shutil.copytree(live.parent, folder / "left")
    await store.close()
    return folder / "left" / "server.sqlite3"


async def clients(path: Path) -> int:
    prepare(path)
    store = await Store.open(path)
    try:
        return len(await store.joined_clients())
    finally:
        await store.close()


def change(path: Path, place: int, content: bytes | None = None) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(content or bytes([byte[0] ^ 0x10]))


async def test_nothing_is_wrong_with_what_a_killed_server_leaves(tmp_path: Path) -> None:
    assert await clients(await crashed(tmp_path)) == 5


async def test_an_empty_database_is_refused_and_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "server.sqlite3"
    path.touch()
    with raises(StorageDamaged, check="gone"):
        prepare(path)
    assert path.stat().st_size == 0
    path.unlink()
    assert await clients(path) == 0


@pytest.mark.parametrize("place", [0, 9, HEADER + 2 * FRAME + 8, HEADER + 2 * FRAME + 500])
async def test_a_log_with_a_changed_bit_before_its_last_transactions_is_refused(tmp_path: Path, place: int) -> None:
    path = await crashed(tmp_path)
    change(path.with_name(f"{path.name}-wal"), place)
    with raises(StorageDamaged, check="damaged-log"):
        prepare(path)


async def test_a_last_transaction_that_a_power_cut_left_in_part_is_undone(tmp_path: Path) -> None:
    path = await crashed(tmp_path)
    log = path.with_name(f"{path.name}-wal")
    os.truncate(log, log.stat().st_size - 100)
    assert await clients(path) == 4


async def test_the_frames_of_an_earlier_log_are_no_damage(tmp_path: Path) -> None:
    """After a checkpoint the log begins again at its start, over what was there."""
    live = tmp_path / "live" / "server.sqlite3"
    live.parent.mkdir()
    store = await Store.open(live)
    for number in range(1, 20):
        await store.remember_client(number, "ab" * 32, "1")
    with sqlite3.connect(live) as other:
        other.execute("PRAGMA wal_checkpoint(RESTART)")
    await store.remember_client(20, "ab" * 32, "1")
    shutil.copytree(live.parent, tmp_path / "left")
    await store.close()
    assert await clients(tmp_path / "left" / "server.sqlite3") == 20


async def test_garbage_in_the_database_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "server.sqlite3"
    assert await clients(path) == 0
    change(path, 8 * 4096, os.urandom(32 << 10))
    with raises(StorageDamaged):
        prepare(path)


async def test_garbage_in_the_database_of_a_running_server_is_noticed(here: Site) -> None:
    await check_file(here.services)
    assert here.services.health.trouble == ""
    with sqlite3.connect(here.services.settings.database_file) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    change(here.services.settings.database_file, 8 * 4096, os.urandom(32 << 10))
    await check_file(here.services)
    answer = await here.http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("database file: ")
    (sample, *_) = here.services.metrics.storage_errors.labels("damaged").collect()[0].samples
    assert sample.value == 1
