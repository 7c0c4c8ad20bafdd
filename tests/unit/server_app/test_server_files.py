"""What a ServerApp leaves for its operator: kept under numbers, listed by plain paths, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.members import Failure
from support.serverside import Site, events_of

from fedcore.state import ModelState
from fedcore.system import left_files
from fedcore.wire.operator import RunFile, RunFilesOut


def lay(work: Path, path: str, content: bytes = b"x") -> Path:
    place = work / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return place


async def problem(work: Any, kind: str) -> None:
    with pytest.raises(Failure) as refused:
        await work
    assert refused.value.problem.kind == kind


async def listed(here: Site, run: str) -> RunFilesOut:
    return RunFilesOut.model_validate_json((await here.operator("GET", f"/v1/runs/{run}/files")).content)


async def test_a_run_whose_app_left_nothing_has_no_trouble(here: Site, model: ModelState) -> None:
    """Such as one that only asks for statistics."""
    run, app = await here.begin()
    assert not (app.folder / "files").exists()
    ended = await here.finish(run, app, model)
    assert events_of(ended, "warning") == []
    assert await listed(here, run) == RunFilesOut(files=[], left_out=0)


async def test_results_and_files_stay_after_the_run(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    lay(app.folder, "results.json", json.dumps({"server": {"1": {"loss": 0.5}}}).encode())
    lay(app.folder, "files/plots/a b%20ü.csv", b"1,2\n")
    assert (await listed(here, run)).files == [], "nothing before its end"
    ended = await here.finish(run, app, model)
    assert ended.status == "finished"
    found = await listed(here, run)
    assert [file.path for file in found.files] == ["results.json", "files/plots/a b%20ü.csv"]
    assert found.files[1].sha256 == hashlib.sha256(b"1,2\n").hexdigest()
    answer = await here.operator("GET", f"/v1/runs/{run}/files/files/plots/a%20b%2520%C3%BC.csv")
    assert answer.content == b"1,2\n"
    assert not app.folder.exists()


async def test_files_of_a_run_that_failed_come_home_too(here: Site) -> None:
    run, app = await here.begin()
    lay(app.folder, "files/notes.txt")
    app.fail("it raised")
    assert (await here.follow(run)).status == "failed"
    assert [file.path for file in (await listed(here, run)).files] == ["files/notes.txt"]


async def test_nothing_leads_out_of_the_folder(here: Site, tmp_path: Path, model: ModelState) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    run, app = await here.begin()
    files = app.folder / "files"
    lay(app.folder, "files/kept")
    (files / "link").symlink_to(secret)
    (files / "folder").symlink_to(tmp_path)
    os.link(secret, files / "hard")
    os.mkfifo(files / "pipe")
    lay(app.folder, "files/.hidden")
    lay(app.folder, "files/new\nline")
    lay(app.folder, "files/__pycache__/x.pyc")
    (app.folder / "results.json").symlink_to(secret)
    ended = await here.finish(run, app, model)
    found = await listed(here, run)
    assert [file.path for file in found.files] == ["files/kept"]
    assert found.left_out == 5
    (warned,) = events_of(ended, "warning")
    assert warned["line"].startswith("5 files of the ServerApp were left out")


async def test_a_folder_that_is_a_link_holds_nothing(here: Site, tmp_path: Path, model: ModelState) -> None:
    (tmp_path / "secret").write_text("token")
    run, app = await here.begin()
    (app.folder / "files").symlink_to(tmp_path)
    await here.finish(run, app, model)
    assert (await listed(here, run)).files == []


def nest(folder: Path, depth: int) -> None:
    """Folders in folders, beyond the length of any path."""
    folder.mkdir(parents=True, exist_ok=True)
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        outer = inner
        os.mkdir("a", dir_fd=outer)
        inner = os.open("a", os.O_RDONLY, dir_fd=outer)
        os.close(outer)
    os.close(inner)


async def test_folders_nested_without_end_keep_no_run_from_ending(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    lay(app.folder, "files/kept")
    nest(app.folder / "files", 3000)
    await here.finish(run, app, model)
    found = await listed(here, run)
    assert ([file.path for file in found.files], found.left_out) == (["files/kept"], 1)
    assert not app.folder.exists()


def test_what_is_removed_is_the_folder_and_nothing_that_it_leads_to(tmp_path: Path) -> None:
    secret, left = tmp_path / "secret", tmp_path / "left"
    secret.mkdir()
    (secret / "token").write_text("token")
    nest(left / "deep", 3000)
    lay(left, "folder/file")
    (left / "link").symlink_to(secret)
    (left / "folder" / "link").symlink_to(secret)
    os.mkfifo(left / "pipe")
    left_files.remove_left(left)
    left.symlink_to(secret)
    left_files.remove_left(left)
    assert sorted(tmp_path.iterdir()) == [secret]
    assert (secret / "token").read_text() == "token"
    left_files.remove_left(left)


@pytest.mark.parametrize(
    "path",
    [
        "../../app/pyproject.toml",
        "files/../../app/pyproject.toml",
        "%2e%2e/index.json",
        "0",
        "index.json",
        "/etc/passwd",
    ],
)
async def test_only_listed_paths_lead_to_a_file(here: Site, model: ModelState, path: str) -> None:
    run, app = await here.begin()
    lay(app.folder, "files/kept")
    await here.finish(run, app, model)
    await problem(here.operator("GET", f"/v1/runs/{run}/files/{path}"), "not-found")


async def test_only_the_operator_reads_them(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    lay(app.folder, "files/kept")
    await here.finish(run, app, model)
    member = here.members[1]
    for path in ("files", "files/files/kept"):
        await problem(member.ask("GET", f"/v1/runs/{run}/{path}"), "unauthorized")


async def test_number_and_size_are_bounded(here: Site, model: ModelState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_files, "MOST_FILES", 3)
    monkeypatch.setattr(left_files, "MOST_BYTES", 100)
    run, app = await here.begin()
    lay(app.folder, "files/a", bytes(90))
    lay(app.folder, "files/b", bytes(11))
    for name in "cdef":
        lay(app.folder, f"files/{name}")
    await here.finish(run, app, model)
    found = await listed(here, run)
    assert [file.path for file in found.files] == ["files/a", "files/c", "files/d"]
    assert found.left_out == 3


@pytest.mark.parametrize("path", ["", "/x", "a//b", "../x", "a/..", ".x", "a\\b", "a\nb", "x" * 301, "a/" * 10 + "b"])
def test_the_wire_takes_plain_paths_only(path: str) -> None:
    with pytest.raises(ValueError, match="type=value_error"):
        RunFile(path=path, size=0, sha256="0" * 64)
