"""Objects in a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.object_cases import *  # noqa: F403
from support.object_cases import new_file

from fedcore.errors import ConfigurationError, StorageFull, StorageUnavailable
from server_app.storage import objects as module
from server_app.storage import open_objects
from server_app.storage.objects import DirectoryObjects, Objects, move


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return DirectoryObjects(tmp_path / "objects")


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFull), (errno.EROFS, StorageUnavailable), (errno.EIO, StorageUnavailable)],
)
async def test_a_disk_in_trouble_takes_nothing_over(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    await objects.put(new_file(tmp_path, b"first"), "model")

    def fails(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    path = new_file(tmp_path, b"second")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(kind):
            await objects.put(path, "model")
    assert (await objects.fetch("model")).read_bytes() == b"first"
    assert path.read_bytes() == b"second"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir() or shared_memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    return shared_memory / f"fedcore-test-{os.getpid()}"


async def test_from_another_file_system_it_is_copied(objects: Objects, elsewhere: Path) -> None:
    path = elsewhere
    path.write_bytes(b"from afar")
    await objects.put(path, "runs/r/model")
    assert not path.exists()
    found = await objects.fetch("runs/r/model")
    assert found.read_bytes() == b"from afar"
    assert [entry.name for entry in found.parent.iterdir()] == ["model"]


async def test_another_kind_of_store_is_refused_by_name(tmp_path: Path) -> None:
    for place in ("gs://bucket", "s3://"):
        with pytest.raises(ConfigurationError, match=f"'{place}'"):
            await open_objects(place, tmp_path)
    assert isinstance(await open_objects("", tmp_path), DirectoryObjects)
    await (await open_objects("elsewhere", tmp_path)).put(new_file(tmp_path, b"x"), "key")
    assert (tmp_path / "elsewhere" / "key").read_bytes() == b"x"
    assert module.checked("runs/r") == "runs/r"


def test_a_file_moves_between_two_mounts_of_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As between two volumes of a container: only the kernel says that they are two."""
    rename = os.replace

    def within_a_folder(source: Path, target: Path) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target)

    monkeypatch.setattr(os, "replace", within_a_folder)
    (tmp_path / "part").write_bytes(b"update")
    move(tmp_path / "part", tmp_path / "objects" / "update")
    assert (tmp_path / "objects" / "update").read_bytes() == b"update"
    assert not (tmp_path / "part").exists()
