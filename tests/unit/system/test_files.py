"""Files that are replaced as a whole, and locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.raising import raises

from fedcore.errors import ConfigurationError
from fedcore.system.files import Lock, check_own_folder, replacing, write_file


@pytest.fixture
def umask() -> None:
    os.umask(0o022)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("mode", "found"), [(0o666, 0o644), (0o600, 0o600)])
def test_a_file_is_replaced_with_the_mode_that_was_asked_for(tmp_path: Path, mode: int, found: int) -> None:
    path = tmp_path / "file"
    for text in ("one", "two"):
        write_file(path, text, mode=mode, durable=True)
        assert path.read_text() == text
    assert path.stat().st_mode & 0o777 == found


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("whole")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "whole"
    assert path.read_text() == "new"


def test_an_error_leaves_the_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("whole")

    def broken_off() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", "lock"])
def test_a_folder_or_a_file_is_held_once(tmp_path: Path, name: str) -> None:
    lock = Lock(tmp_path / name, in_use="taken")
    with pytest.raises(ConfigurationError, match="taken"):
        Lock(tmp_path / name, in_use="taken")
    lock.close()
    lock.close()
    with Lock(tmp_path / name, in_use="taken"):
        pass


OWN = ("run.json", "model.safetensors", "files")


@pytest.mark.parametrize("entries", [None, (), ("run.json",), ("run.json", "files/notes/a.txt")])
def test_a_folder_that_a_command_made_may_be_replaced(tmp_path: Path, entries: tuple[str, ...] | None) -> None:
    folder = tmp_path / "out"
    fill(folder, entries)
    check_own_folder(folder, OWN, mark="run.json")


@pytest.mark.parametrize(
    "entries", [("thesis.tex",), ("run.json", "thesis.tex"), ("model.safetensors",), (".git/HEAD",)]
)
def test_a_folder_with_anything_else_is_never_replaced(tmp_path: Path, entries: tuple[str, ...] | None) -> None:
    folder = tmp_path / "out"
    fill(folder, entries)
    with raises(ConfigurationError, check="not-own-folder"):
        check_own_folder(folder, OWN, mark="run.json")
    assert all((folder / name).is_file() for name in entries)


def test_a_link_to_a_folder_and_a_file_are_no_folders(tmp_path: Path) -> None:
    fill(tmp_path / "there", ("run.json",))
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for path in (tmp_path / "link", tmp_path / "there" / "run.json"):
        with raises(ConfigurationError, check="not-a-folder"):
            check_own_folder(path, OWN, mark="run.json")


def fill(folder: Path, entries: tuple[str, ...] | None) -> None:
    for name in entries or ():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    if entries == ():
        folder.mkdir()
