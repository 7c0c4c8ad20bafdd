"""A server whose SQLite file lost its content begins no new federation in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.errors import ConfigurationError
from server_app.storage.schema import refuse_lost, upgrade


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path


def check(folder: Path) -> None:
    refuse_lost(folder / "server.sqlite3", folder / "runs")


def test_an_empty_file_is_refused(folder: Path) -> None:
    database = folder / "server.sqlite3"
    database.touch()
    for use in (lambda: check(folder), lambda: upgrade(database)):
        with pytest.raises(ConfigurationError) as refused:
            use()
        assert refused.value.check == "database-lost"
    assert database.stat().st_size == 0
    database.write_bytes(b"SQLite format 3\0")
    check(folder)


def test_a_file_that_is_missing_next_to_runs_is_refused(folder: Path) -> None:
    (folder / "runs" / "0213d504a20951d8").mkdir()
    with pytest.raises(ConfigurationError) as refused:
        check(folder)
    assert refused.value.check == "database-lost"


def test_a_folder_in_which_nothing_ran_is_a_beginning(folder: Path) -> None:
    check(folder)
    (folder / "runs").rmdir()
    check(folder)
