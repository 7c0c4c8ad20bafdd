"""Objects: models, updates, sums and replies by their keys, in a folder or in a bucket that servers share."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, Protocol, TypeVar

from fedcore.errors import StorageUnavailable, UsageError
from fedcore.system.concurrency import in_thread
from fedcore.system.files import full_disk_named, remove_tree, sync_folder

T = TypeVar("T")
_FULL: Final = "the disk of the server's object store is full; nothing was taken over"
_FAILS: Final = "the server's object store cannot be read or written for now"


class Objects(Protocol):
    """Files by keys like `runs/RUN/model`. A key's object is there whole or not at all.

    Raises StorageFull, and StorageUnavailable if the store is away, read-only or refuses.
    """

    async def put(self, path: Path, key: str) -> None:
        """Take a file over as the object `key`, replacing one that is there; durable on return."""

    async def fetch(self, key: str) -> Path:
        """A local file with the object's content, to read only; KeyError if there is none."""

    async def remove(self, prefix: str) -> None:
        """Remove the object `prefix`, and all whose keys begin with `prefix/`."""

    async def cut(self, key: str, size: int) -> None:
        """Nobody needs more than the first `size` bytes of an object any more: the rest may go, and need not."""


class DirectoryObjects:
    """Objects in a folder, which may be one that several servers mount; a key is the path below it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, path: Path, key: str) -> None:
        """Rename if the file system is the same; otherwise copy, and then remove the file."""
        await _in_thread(lambda: move(path, self._path(key)))

    async def fetch(self, key: str) -> Path:
        """The object itself."""
        path = self._path(key)
        if not await _in_thread(path.is_file):
            raise KeyError(key)
        return path

    async def remove(self, prefix: str) -> None:
        """Of a folder all that is in it."""
        await _in_thread(lambda: remove_object(self._path(prefix)))

    async def cut(self, key: str, size: int) -> None:
        """Cut the file, unless it is as short already, or gone."""
        await _in_thread(lambda: _cut(self._path(key), size))

    def _path(self, key: str) -> Path:
        return self._root / checked(key)


def checked(key: str) -> str:
    """`key`, if it stays below the root; raises UsageError."""
    parts = PurePosixPath(key).parts
    if not parts or key != "/".join(parts) or {"..", "/"} & set(parts):
        raise UsageError(f"{key!r} is no key of an object")
    return key


@contextmanager
def trouble_named() -> Iterator[None]:
    """Raise StorageFull or StorageUnavailable for an OSError."""
    try:
        with full_disk_named(_FULL):
            yield
    except OSError as error:
        raise StorageUnavailable(_FAILS) from error


async def _in_thread(work: Callable[[], T]) -> T:
    with trouble_named():
        return await in_thread(work)


def move(path: Path, target: Path) -> None:
    """Make `path` the file `target`, durably; a copy if that is on another file system. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() and target.exists():  # a try before this one moved it, and could not make the name durable
        pass
    else:
        _move(path, target)
    # The new folders' names too, up to the first that was there: few, and cheap when they are clean.
    for folder in [target.parent, *target.parent.parents][:5]:
        sync_folder(folder)


def _move(path: Path, target: Path) -> None:
    """Volumes of containers may share a device, and still let nobody rename from one to the other."""
    _sync(path)
    try:
        os.replace(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(path, target)
        path.unlink()


def _copy(path: Path, target: Path) -> None:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
    os.close(descriptor)
    draft = Path(name)
    try:
        shutil.copyfile(path, draft)
        _sync(draft)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut(path: Path, size: int) -> None:
    with suppress(FileNotFoundError):
        if path.stat().st_size > size:
            os.truncate(path, size)


def remove_object(path: Path) -> None:
    """Remove a file, or a folder with all that is in it."""
    try:
        remove_tree(path)
    except FileNotFoundError:  # somebody else was quicker
        return
