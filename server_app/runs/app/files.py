"""What the ServerApp of a run left for its operator: its results, and the files that it wrote into its folder.

They are copied when the app has ended, under numbers, so that no name that the app chose is ever a path on this
machine; an index says which is which. They stay as long as the run's model does.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import BinaryIO, Final

from fedcore.errors import StorageFull
from fedcore.system.files import write_file
from fedcore.system.left_files import MOST_BYTES, LeftFiles, open_left
from fedcore.wire.operator import RESULTS_FILE, RunFile, RunFilesOut
from server_app.storage.objects import Objects

APP_FILES: Final = "files"
"""The folder below the app's work folder in which it runs, and with which the paths of its files begin."""
_LEFT: Final = "left"
_INDEX: Final = "index.json"
_CHUNK: Final = 1 << 20


async def save_app_files(objects: Objects, key: str, folder: Path, work: Path) -> int:
    """Save what the app left in its work folder under `key`; how many files were left out. Raises StorageFull.

    folder
        For the copies on their way.
    """
    drafts = folder / _LEFT
    index = await asyncio.to_thread(_collect, work, drafts)
    for number in range(len(index.files)):
        await objects.put(drafts / str(number), f"{key}/{number}")
    await objects.put(drafts / _INDEX, f"{key}/{_INDEX}")
    return index.left_out


async def saved_files(objects: Objects, key: str) -> RunFilesOut:
    """The files of a run that has ended; none if it left none."""
    try:
        path = await objects.fetch(f"{key}/{_INDEX}")
    except KeyError:
        return RunFilesOut(files=[], left_out=0)
    return RunFilesOut.model_validate_json(await asyncio.to_thread(path.read_bytes))


async def saved_file(objects: Objects, key: str, path: str) -> tuple[Path, RunFile] | None:
    """One of these files; None for a path that the index does not have."""
    for number, file in enumerate((await saved_files(objects, key)).files):
        if file.path == path:
            return await objects.fetch(f"{key}/{number}"), file
    return None


def _collect(work: Path, target: Path) -> RunFilesOut:
    """Copy what the app left to `target`, under numbers, with an index."""
    target.mkdir(mode=0o700, exist_ok=True)
    files: list[RunFile] = []

    def add(path: str, file: BinaryIO, size: int) -> None:
        files.append(_copy(path, file, size, target / str(len(files))))

    try:
        results = open_left(work / RESULTS_FILE)
        if results is not None:
            with results:
                add(RESULTS_FILE, results, MOST_BYTES)
        left = LeftFiles(work / APP_FILES)
        for path, file, size in left.read():
            add(f"{APP_FILES}/{path}", file, size)
        index = RunFilesOut(files=files, left_out=left.left_out)
        write_file(target / _INDEX, index.model_dump_json(), mode=0o600)
    except OSError as error:
        raise StorageFull(f"what the ServerApp left could not be kept: {error.strerror}") from error
    return index


def _copy(path: str, file: BinaryIO, most: int, target: Path) -> RunFile:
    """At most `most` bytes: what still grows may not fill the disk."""
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as copy:
        target.chmod(0o600)
        while chunk := file.read(min(_CHUNK, most - size)):
            digest.update(chunk)
            size += len(chunk)
            copy.write(chunk)
    return RunFile(path=path, size=size, sha256=digest.hexdigest())
