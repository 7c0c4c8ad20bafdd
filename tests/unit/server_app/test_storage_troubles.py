"""What operators and clients are told while the server's disk or database is in trouble."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.members import Failure
from support.serverside import Site, site

from fedcore.federation import FederationFolder
from fedcore.flower.app import AppBundle
from server_app.storage import engines


async def refused_submission(here: Site) -> Failure:
    with pytest.raises(Failure) as refused:
        await here.submit()
    left = [path for path in here.services.settings.data_dir.rglob("*") if path.is_file()]
    assert [path for path in left if not path.name.startswith("server.")] == [], "nothing is left of it"
    return refused.value


@pytest.mark.parametrize(
    ("number", "status", "kind", "told"),
    [
        (errno.ENOSPC, 507, "storage-full", "the server's disk is full"),
        (errno.EROFS, 503, "storage-unavailable", "read-only"),
    ],
)
async def test_submitting_to_a_disk_in_trouble_says_so(
    here: Site, monkeypatch: pytest.MonkeyPatch, number: int, status: int, kind: str, told: str
) -> None:
    def fails(bundle: AppBundle, folder: Path) -> Any:
        folder.mkdir(parents=True)
        raise OSError(number, os.strerror(number), str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(AppBundle, "write", fails)
        failure = await refused_submission(here)
    assert (failure.response.status_code, failure.problem.kind) == (status, kind)
    assert told in failure.problem.detail
    assert str(here.services.settings.data_dir) not in failure.problem.detail
    assert (await here.submit()).run


async def test_the_log_has_one_line_of_what_the_disk_or_database_says(
    here: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(bundle: AppBundle, folder: Path) -> Any:
        raise OSError(errno.ENOSPC, "no room\nHINT: check the disk")

    monkeypatch.setattr(AppBundle, "write", fails)
    await refused_submission(here)
    (line,) = [record.getMessage() for record in caplog.records if "no room" in record.getMessage()]
    assert "\n" not in line


async def test_submitting_to_a_locked_database_says_so(
    federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PRAGMAS", (*engines.PRAGMAS, "PRAGMA busy_timeout = 50"))
    async with site(federation, tmp_path) as here:
        with closing(sqlite3.connect(here.services.settings.database_file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            failure = await refused_submission(here)
        assert (failure.response.status_code, failure.problem.kind) == (503, "storage-unavailable")
        assert "locked" in failure.problem.detail
        assert failure.response.headers["Retry-After"] == "2"
        assert (await here.submit()).run
