"""Runs that ended long ago are forgotten, with all their files; nothing is left of what was never queued."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.serverside import SETTINGS, Failure, Site, site
from support.tiny import TINY

from fedcore.errors import StorageUnavailable
from fedcore.federation import FederationFolder
from fedcore.flower.app import AppBundle
from fedcore.state import ModelState
from fedcore.wire.operator import RunIn
from fedcore.wire.problems import ProblemKind
from server_app.runs import queue
from server_app.runs.files.run_files import RunKeys
from server_app.runs.retention import remove_expired
from server_app.storage.store import Store

DAY = 86_400.0


async def finished(here: Site, model: ModelState) -> str:
    run, app = await here.begin()
    assert (await here.finish(run, app, model)).status == "finished"
    return run


async def kept(here: Site) -> set[str]:
    """Runs in the database; their objects are there, and none of others."""
    rows = {row.run for row in await here.services.store.list_runs(50)}
    folder = here.services.settings.runs_dir
    assert {path.name for path in folder.iterdir() if any(path.rglob("*"))} == rows
    return rows


async def aged(here: Site, run: str, days: float) -> None:
    await here.services.store.update_run(run, ended_at=time.time() - days * DAY)


async def test_the_newest_ended_runs_are_kept_and_those_that_have_not_ended(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    async with site(federation, tmp_path, keep_runs=2) as here:
        runs = [await finished(here, model) for _ in range(3)]
        led, _ = await here.begin()
        waiting = (await here.submit()).run
        await remove_expired(here.services)
        assert await kept(here) == {*runs[1:], led, waiting}


async def test_runs_are_kept_for_days_from_their_end(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    async with site(federation, tmp_path, keep_days=7) as here:
        old, young = [await finished(here, model) for _ in range(2)]
        await aged(here, old, 7.1)
        await aged(here, young, 6.9)
        await remove_expired(here.services)
        assert await kept(here) == {young}


async def test_without_limits_all_runs_are_kept(here: Site, model: ModelState) -> None:
    run = await finished(here, model)
    await aged(here, run, 10_000)
    await remove_expired(here.services)
    assert await kept(here) == {run}


async def test_a_run_whose_forgetting_was_broken_off_is_forgotten_the_next_time(
    federation: FederationFolder, tmp_path: Path, model: ModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> bool:
        raise StorageUnavailable("gone")

    async with site(federation, tmp_path, keep_days=7) as here:
        run = await finished(here, model)
        await aged(here, run, 8)
        with monkeypatch.context() as broken:
            broken.setattr(Store, "forget_run", away)
            with pytest.raises(StorageUnavailable):
                await remove_expired(here.services)
        await remove_expired(here.services)
        assert await kept(here) == set()


async def test_a_submission_that_was_killed_before_its_row_leaves_nothing(
    federation: FederationFolder, tmp_path: Path, model: ModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Nothing of the process runs any more."""

    async def killed(*_: Any, **__: Any) -> None:
        raise Killed

    async def nothing(*_: Any) -> None:
        return None

    async with site(federation, tmp_path) as first:
        whole = await finished(first, model)
        work = first.services.settings.work_dir
        (work / f"{whole}.submitted").mkdir()  # of one that was killed just after its row
        bundle = AppBundle.from_folder(TINY)
        body = RunIn(app_sha256=bundle.sha256, files=dict(bundle.files), run_config={}, settings=SETTINGS)
        with monkeypatch.context() as dying:
            dying.setattr(Store, "add_run", killed)
            dying.setattr(type(first.services.objects), "remove", nothing)
            dying.setattr(queue, "remove_tree", lambda _: None)
            with pytest.raises(Killed):
                await first.application.queue.submit(body)
        (orphan,) = (path.name for path in first.services.settings.runs_dir.iterdir() if path.name != whole)
    async with site(federation, tmp_path) as second:
        assert not (second.services.settings.runs_dir / orphan).exists()
        assert await kept(second) == {whole}


async def test_a_model_whose_file_is_gone_is_refused_and_no_failure_of_the_server(
    here: Site, model: ModelState
) -> None:
    """An older copy of the files next to a newer database, or a download while the run is being forgotten."""
    run = await finished(here, model)
    await here.services.objects.remove(RunKeys(run).model)
    with pytest.raises(Failure) as refused:
        await here.operator("GET", f"/v1/runs/{run}/model")
    assert refused.value.kind == ProblemKind.NOT_FOUND
