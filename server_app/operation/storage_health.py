"""Whether what a server stands on can be written and read: its database, its own disk, its object store.

They are tried every few seconds, in the background, by what they are used for: a row that is committed, a file that is
synced, an object that is put, fetched and removed. `/readyz` says what the last try found, and does not wait for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from fedcore.errors import FedcoreError, StorageDamaged, StorageUnavailable
from fedcore.system.concurrency import in_thread
from server_app.storage.trouble import disk_trouble

if TYPE_CHECKING:
    from server_app.services import Services

log = logging.getLogger("fedcore.server")

CHECK_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 2.0
"""As long as something is wrong."""
STUCK_SECONDS: Final = 20.0
"""A try that takes longer is trouble itself: the file system of a lost machine never answers."""
_NAME: Final = "health"
_PROBE_BYTES: Final = 4096


class StorageHealth:
    """What the last tries found. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._troubles: dict[str, str] = {}
        self._trying: tuple[str, float] | None = None

    @property
    def trouble(self) -> str:
        """What cannot be written or read, and why; empty where nothing is wrong."""
        found = dict(self._troubles)
        if self._trying is not None and self._clock() - self._trying[1] > STUCK_SECONDS:
            found[self._trying[0]] = f"no answer for {self._clock() - self._trying[1]:.0f} s"
        return "; ".join(f"{what}: {why}" for what, why in found.items())

    async def attempt(self, what: str, step: Callable[[], Awaitable[None]]) -> Exception | None:
        """Do a step, and keep what was wrong with it; that is returned too."""
        self._trying = (what, self._clock())
        try:
            await step()
        except Exception as error:
            why = str(error) if isinstance(error, FedcoreError) else f"{type(error).__name__}: {error}"
            if self._troubles.get(what) != why:
                log.warning("%s: %s", what, why)
            self._troubles[what] = why
            return error
        finally:
            self._trying = None
        if self._troubles.pop(what, ""):
            log.info("%s: can be written and read again", what)
        return None


async def keep_checking(services: Services) -> NoReturn:
    """Try all of it again and again."""
    while True:
        await check(services)
        await asyncio.sleep(AGAIN_SECONDS if services.health.trouble else CHECK_SECONDS)


async def check(services: Services) -> None:
    """Try all of it once; one after the other, so that what is slow is not asked twice."""
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
    """A lease that nobody waits for is written, and read."""
    await services.store.take_lease(_NAME, holder=_NAME, url=services.settings.url, seconds=-1.0)
    if await services.store.lease(_NAME) is None:
        raise StorageDamaged("what was written is not there")


async def _disk(services: Services, content: bytes) -> None:
    services.spool.check_room(0)
    draft = await in_thread(_written, services, content)
    await in_thread(draft.unlink)


async def _objects(services: Services, content: bytes) -> None:
    key = f"{_NAME}/{services.new_id()}"  # other servers may try the same store at the same time
    draft = await in_thread(_written, services, content)
    try:
        await services.objects.put(draft, key)
        found = await services.objects.fetch(key)
        if await in_thread(found.read_bytes) != content:
            raise StorageDamaged("what was put is not what is there")
    except KeyError:
        raise StorageUnavailable("what was put is not there") from None
    finally:
        draft.unlink(missing_ok=True)
    await services.objects.remove(key)


def _written(services: Services, content: bytes) -> Path:
    """A file of the data folder, synced; raises what a disk's trouble means."""
    path = services.settings.data_dir / f".{_NAME}"
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise disk_trouble(error) or error from error
    return path
