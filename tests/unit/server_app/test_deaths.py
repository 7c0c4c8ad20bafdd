"""How often a server may be killed while it leads a run that comes no further."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from support.serverside import site, until

from fedcore.errors import RunFailed
from fedcore.federation import FederationFolder
from server_app.runs.deaths import MOST_DEATHS, Deaths

RUN = "run"


async def killed(data: Path, folder: Path) -> Path:
    """What the disk has after kill -9: a folder of a further process."""
    await asyncio.to_thread(shutil.copytree, data, folder / "data")
    return folder


async def test_a_run_without_progress_ends_and_can_be_resumed(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path / "0") as here:
        run, _ = await here.begin()
        folder = await killed(tmp_path / "0" / "data", tmp_path / "1")
    for number in range(1, MOST_DEATHS):
        async with site(federation, folder) as here:
            await until(lambda: bool(here.apps) and here.apps[-1].start is not None)
            folder = await killed(folder / "data", tmp_path / str(number + 1))
    async with site(federation, folder) as here:
        ended = await here.follow(run)
        assert (ended.status, here.apps) == ("failed", [])
        assert "killed 2 times" in ended.reason
        await here.application.queue.resume(run)
        await until(lambda: bool(here.apps) and here.apps[-1].start is not None)
        folder = await killed(folder / "data", tmp_path / "resumed")
    async with site(federation, folder) as here:  # it counts anew
        await until(lambda: bool(here.apps) and here.apps[-1].start is not None)
        assert (await here.finish(run, here.apps[-1])).status == "finished"


async def test_neither_a_stop_nor_a_machine_that_went_down_counts(federation: FederationFolder, tmp_path: Path) -> None:
    async with site(federation, tmp_path / "site") as here:
        await here.begin()
        store = here.services.store
        run = (await store.running()).run  # type: ignore[union-attr]
        (data := tmp_path / "data").mkdir()
        for _ in range(2 * MOST_DEATHS):
            stopped = Deaths(store, data, boot="one")
            await stopped.begin(run)
            await stopped.end()
        for boot in "abcd":
            await Deaths(store, data, boot=boot).begin(run)
        for _ in range(MOST_DEATHS - 1):
            await Deaths(store, data, boot="d").begin(run)
        with pytest.raises(RunFailed):
            await Deaths(store, data, boot="d").begin(run)
