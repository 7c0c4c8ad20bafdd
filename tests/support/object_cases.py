"""What an object store does anywhere; test modules import all of it beside a fixture `objects` of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedcore.errors import UsageError
from server_app.storage.objects import Objects


def new_file(folder: Path, content: bytes) -> Path:
    path = folder / "new"
    path.write_bytes(content)
    return path


async def test_an_object_is_taken_over_fetched_and_replaced(objects: Objects, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="runs/r/model"):
        await objects.fetch("runs/r/model")
    for content in (b"first", b"second, and longer", b""):
        path = new_file(tmp_path, content)
        await objects.put(path, "runs/r/model")
        assert not path.exists(), "it was taken over"
        assert (await objects.fetch("runs/r/model")).read_bytes() == content


async def test_objects_are_removed_by_their_prefix(objects: Objects, tmp_path: Path) -> None:
    for key in ("runs/r/model", "runs/r/exchanges/1/mean", "runs/r2/model"):
        await objects.put(new_file(tmp_path, key.encode()), key)
    await objects.remove("runs/r")
    await objects.remove("runs/r")
    for gone in ("runs/r/model", "runs/r/exchanges/1/mean"):
        with pytest.raises(KeyError):
            await objects.fetch(gone)
    assert (await objects.fetch("runs/r2/model")).read_bytes() == b"runs/r2/model"
    await objects.remove("runs/r2/model")
    with pytest.raises(KeyError):
        await objects.fetch("runs/r2/model")


async def test_of_an_object_that_is_cut_the_beginning_stays(objects: Objects, tmp_path: Path) -> None:
    await objects.put(new_file(tmp_path, b"begins and ends"), "runs/r/update")
    for size in (6, 10, 20):
        await objects.cut("runs/r/update", size)
        assert (await objects.fetch("runs/r/update")).read_bytes()[:6] == b"begins"
    await objects.remove("runs/r/update")
    await objects.cut("runs/r/update", 6)
    with pytest.raises(KeyError):
        await objects.fetch("runs/r/update")


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "runs/../../x", "runs//x", "runs/"])
async def test_a_key_stays_below_the_root(objects: Objects, tmp_path: Path, key: str) -> None:
    path = new_file(tmp_path, b"x")
    for asked in (objects.put(path, key), objects.fetch(key), objects.remove(key)):
        with pytest.raises(UsageError, match=re.escape(repr(key))):
            await asked
    assert path.exists()
