"""Checks that the database, the disk and the object store can be written and read.

They run every few seconds in the background, each by ordinary use: a row that is committed, a file that is synced, an
object that is stored, fetched and removed. `/readyz` reports the last result and does not wait for a new one.
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
_NAME: Final = "health"
_PROBE_BYTES: Final = 4096


async def keep_checking(services: Services) -> NoReturn:
    """Check everything, for ever."""
    while True:
        await check(services)
        await asyncio.sleep(RETRY_SECONDS if services.health.trouble else CHECK_SECONDS)


async def check(services: Services) -> None:
    """Check everything once, one after the other, so that slow storage is not asked twice at a time."""
    content = services.randomness(_PROBE_BYTES)
    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "database": lambda: _database(services),
        "disk of the data folder": lambda: _disk(services, content),
        "object store": lambda: _objects(services, content),
    }
    for what, step in steps.items():
        if error := await services.health.attempt(what, step):
            services.metrics.storage_failed(error)


async def _database(services: Services) -> None:
    """Write and read a lease that nobody waits for."""
    await services.store.take_lease(_NAME, holder=_NAME, url=services.settings.url, seconds=-1.0)
    if await services.store.lease(_NAME) is None:
        raise StorageDamaged("what was written is not there")


async def _disk(services: Services, content: bytes) -> None:
    services.spool.check_room(0)
    draft = await in_thread(_write_probe, services, content)
    await in_thread(draft.unlink)


async def _objects(services: Services, content: bytes) -> None:
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
