"""What a server in this process holds, over a folder; and the clock that all of it goes by."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fedcore.federation import FederationFolder, Policy, ServerKit, provision
from server_app.members.presence import Presence
from server_app.members.rosters import Rosters
from server_app.services import Services
from server_app.settings import ServerSettings
from server_app.storage.blobs import Spool
from server_app.storage.objects import DirectoryObjects
from server_app.storage.store import Store

T = TypeVar("T")


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return provision(
        tmp_path_factory.mktemp("server-federation") / "fed",
        name="testing",
        clients=4,
        now=datetime.now(UTC),
        hosts=["127.0.0.1"],
        policy=Policy.own(4),
    )


class Clock:
    """Seconds that stand still, so that nobody is late or silent because the machine is busy."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    async def run_until(self, work: asyncio.Future[T]) -> T:
        """The result of `work`, for which time has to pass."""
        while not work.done():
            self.advance(0.1)
            await asyncio.sleep(0.01)
        return work.result()


@asynccontextmanager
async def open_services(
    kit: ServerKit,
    settings: ServerSettings,
    clock: Clock,
    *,
    new_id: Callable[[], str],
    randomness: Callable[[int], bytes] = os.urandom,
    threads: int = 1,
) -> AsyncIterator[Services]:
    """The services of a process that begins over the folder of `settings`, which may hold what others left."""
    settings.spool_dir.mkdir(parents=True, exist_ok=True)
    store = await Store.open(settings.database or settings.database_file)
    try:
        yield Services(
            settings=settings,
            roster=Rosters(kit.rosters, authority=kit.authority, path=kit.rosters_file),
            min_cohort=kit.min_cohort,
            store=store,
            objects=DirectoryObjects(settings.data_dir),
            spool=Spool(folder=settings.spool_dir, reserve_bytes=settings.reserve_bytes),
            presence=Presence(clock=clock),
            clock=clock,
            wall=time.time,
            new_id=new_id,
            randomness=randomness,
            threads=threads,
        )
    finally:
        await store.close()


def lenient(folder: Path, **limits: Any) -> ServerSettings:
    """Settings over `folder` that keep no room on the disk free, and wait for nobody where enough clients are there."""
    quick: dict[str, Any] = {"reserve_bytes": 0, "grace_seconds": 0.0, "retry_seconds": 0.0}
    return ServerSettings(data_dir=folder / "data", **{**quick, **limits})
