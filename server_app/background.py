"""Background tasks of a server: checks of its storage, gauges, and the reminder that its certificate ends.

The storage is checked by ordinary use every few seconds: a row that is committed, a file that is synced, an object that
is stored, fetched and removed. `/readyz` reports the last result and does not wait for a new one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn

from fedcore.errors import StorageDamaged, StorageUnavailable
from fedcore.system.concurrency import in_thread
from server_app.services import Services
from server_app.storage.trouble import disk_trouble

CHECK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0
"""Between checks while something is wrong."""
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
    """Check all storage, more often while something is wrong."""
    while True:
        await check_storage(services)
        await asyncio.sleep(RETRY_SECONDS if services.health.trouble else CHECK_SECONDS)


async def check_storage(services: Services) -> None:
    """Check everything once, one after the other, so that slow storage gets one request at a time."""
    content = services.randomness(_PROBE_BYTES)
    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "database": lambda: _check_database(services),
        "disk of the data folder": lambda: _check_disk(services, content),
        "object store": lambda: _check_objects(services, content),
    }
    for what, step in steps.items():
        if error := await services.health.attempt(what, step):
            services.metrics.storage_failed(error)


async def _check_database(services: Services) -> None:
    """Write and read a lease that nobody waits for."""
    await services.store.take_lease(_NAME, holder=_NAME, url=services.settings.url, seconds=-1.0)
    if await services.store.lease(_NAME) is None:
        raise StorageDamaged("what was written is not there")


async def _check_disk(services: Services, content: bytes) -> None:
    services.spool.check_room(0)
    draft = await in_thread(_write_probe, services, content)
    await in_thread(draft.unlink)


async def _check_objects(services: Services, content: bytes) -> None:
    key = f"{_NAME}/{services.new_id()}"  # other servers may check the same store at the same time
    draft = await in_thread(_write_probe, services, content)
    try:
        await services.objects.put(draft, key)
        copy = await services.objects.fetch(key)
        if await in_thread(copy.read_bytes) != content:
            raise StorageDamaged("what was put is not what is there")
    except KeyError:
        raise StorageUnavailable("what was put is not there") from None
    finally:
        draft.unlink(missing_ok=True)
    await services.objects.remove(key)


def _write_probe(services: Services, content: bytes) -> Path:
    """A synced file in the data folder; raises StorageFull or StorageUnavailable if the disk fails."""
    path = services.settings.data_dir / f".{_NAME}"
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise disk_trouble(error) or error from error
    return path
