"""Background tasks of a server: checks of its storage, gauges, and the reminder that its certificate ends.

The storage is checked by ordinary use every few seconds: a row that is committed, a file that is synced, an object that
is stored, fetched and removed. From time to time every page of an SQLite database is read. `/readyz` reports the last
result and does not wait for a new one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

from fedcore.errors import FedcoreError, StorageDamaged, StorageUnavailable
from fedcore.system.concurrency import in_thread
from server_app.operation import integrity
from server_app.services import Services
from server_app.storage.blobs import Spool, discard
from server_app.storage.trouble import disk_trouble

CHECK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0
"""Between checks while something is wrong."""
FILE_SECONDS: Final = 60.0
"""Between two checks of all pages of the database, at the least."""
_FILE_SHARE: Final = 100
"""So many times as long as it took it is not checked again."""
WATCH_SECONDS: Final = 10.0
CONNECTED_SECONDS: Final = 30.0
"""A client that waits for a task asks again after 25 s at the latest."""
_NAME: Final = "health"
_PROBE_BYTES: Final = 4096


async def watch_gauges(services: Services) -> NoReturn:
    """Keep the gauges and the certificate's reminder up to date."""
    while True:
        await update_gauges(services)
        await asyncio.sleep(WATCH_SECONDS)


async def update_gauges(services: Services) -> None:
    """Set the gauges, and log the certificate's reminder if it is due."""
    metrics = services.metrics
    metrics.clients.set(len(services.presence.online(CONNECTED_SECONDS)))
    if services.certificate is not None:
        services.certificate.remind()
        metrics.certificate.set(services.certificate.days_left)
    try:
        metrics.waiting_runs.set(await services.store.count_waiting())
    except Exception as error:  # the leader of the runs says what is wrong with the database
        metrics.storage_failed(error)


async def watch_storage(services: Services) -> NoReturn:
    """Check all storage for ever, each by itself: one that is stuck does not hide the others."""
    services.health.expect(_CHECKS)
    async with asyncio.TaskGroup() as group:
        for what in _CHECKS:
            group.create_task(_watch(services, what))
        if not services.settings.shared:
            group.create_task(_watch_file(services))
    raise AssertionError("a watch has ended")


async def _watch(services: Services, what: str) -> NoReturn:
    """Check one storage for ever, more often while something is wrong with it."""
    while True:
        error = await _check(services, what)
        await asyncio.sleep(RETRY_SECONDS if error else CHECK_SECONDS)


async def _watch_file(services: Services) -> NoReturn:
    """Read every page of an SQLite database from time to time: what is damaged may not be needed for months."""
    while True:
        began = services.clock()
        await check_file(services)
        await asyncio.sleep(max(FILE_SECONDS, _FILE_SHARE * (services.clock() - began)))


async def check_file(services: Services) -> None:
    """Read every page of the SQLite database once."""
    path = services.settings.database_file
    if error := await services.health.check("database file", lambda: in_thread(integrity.check_file, path), slow=True):
        services.metrics.storage_failed(error)


async def check_storage(services: Services) -> None:
    """Check everything once."""
    for what in _CHECKS:
        await _check(services, what)


async def _check(services: Services, what: str) -> Exception | None:
    error = await services.health.check(what, lambda: _CHECKS[what](services))
    if error is not None:
        services.metrics.storage_failed(error)
    return error


async def _check_database(services: Services) -> None:
    """Write and read a lease that nobody waits for."""
    await services.store.take_lease(_NAME, holder=_NAME, url=services.settings.url, seconds=-1.0)
    if await services.store.lease(_NAME) is None:
        raise StorageDamaged("what was written is not there")
    await services.store.check_room()


async def _check_disk(services: Services) -> None:
    await in_thread(services.spool.check_room, 0)
    draft = await in_thread(_write_probe, services.spool, services.randomness(_PROBE_BYTES))
    await in_thread(draft.unlink)


async def _check_objects(services: Services) -> None:
    key = f"{_NAME}/{services.new_id()}"  # other servers may check the same store at the same time
    content = services.randomness(_PROBE_BYTES)
    draft = await in_thread(_write_probe, services.spool, content)
    try:
        await services.objects.put(draft, key)
        copy = await services.objects.fetch(key)
        if await in_thread(copy.read_bytes) != content:
            raise StorageDamaged("what was put is not what is there")
    except KeyError:
        raise StorageUnavailable("what was put is not there") from None
    finally:
        await in_thread(discard, draft)
    await services.objects.remove(key)


def _write_probe(spool: Spool, content: bytes) -> Path:
    """A synced file in the spool that reads as it was written; raises what the disk does, as an error of storage."""
    path = None
    try:
        path = spool.create()
        with path.open("r+b") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.read_bytes() != content:
            raise StorageDamaged("what was written is not what is there")
    except (OSError, FedcoreError) as error:
        if path is not None:
            discard(path)
        raise (disk_trouble(error) if isinstance(error, OSError) else None) or error from error
    return path


_CHECKS: Final[Mapping[str, Callable[[Services], Awaitable[None]]]] = {
    "database": _check_database,
    "disk of the data folder": _check_disk,
    "object store": _check_objects,
}
