"""Files that are either as they were or complete, folders that one process holds alone, and disks that are full."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Self

from fedcore.errors import ConfigurationError, EnvironmentFailure, StorageFull

_MAX_PATH_FOR_SOCKETS: Final = 72
"""Bytes; the kernel takes 108 with the final zero, and a data loader adds /pymp-xxxxxxxx/listener-xxxxxxxx."""
_LOOKED_AT_SECONDS: Final = (0.02, 0.05, 0.1)
"""Pauses before a lock counts as taken: `is_locked` shares it for an instant."""
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666, durable: bool = False) -> Iterator[BinaryIO]:
    """A new file next to `path` that takes its place when the block ends well; an error leaves `path` as it was.

    Raises OSError.

    Args:
        mode: of the new file, less the umask.
        durable: whether file and name are on the disk when the block has ended, so that no power failure takes them
            back.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
        if durable:
            sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_file(path: Path, content: bytes | str, *, mode: int = 0o666, durable: bool = False) -> None:
    """Write a file at once, as `replacing` does; text is UTF-8. Raises OSError."""
    with replacing(path, mode=mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_replaceable(path: Path, *, force: bool, option: str = "--out") -> None:
    """Refuse a place where something is already, unless forced; raises ConfigurationError that names the option."""
    if path.exists() and not force:
        raise ConfigurationError(
            f"{option}: {path} exists already; name another file, or replace it with --force", check="exists"
        )


def check_target(path: Path, *, force: bool, option: str = "--out") -> None:
    """The same, and a place in a folder that is not there."""
    check_replaceable(path, force=force, option=option)
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"{option}: there is no folder {path.absolute().parent}")


def check_no_folder(path: Path, *, option: str = "--out") -> None:
    """Refuse a folder where a file is to be made, forced or not; raises ConfigurationError that names the option."""
    if path.is_dir():
        raise ConfigurationError(f"{option}: {path} is a folder; name a file", check="is-a-folder")


def check_own_folder(path: Path, own: Collection[str], *, mark: str, option: str = "--out") -> None:
    """Refuse to replace anything but a folder that the same command made, or an empty one; nothing if there is none.

    Raises ConfigurationError that names the option and what else is there.

    Args:
        own: names that the command gives the folder's entries.
        mark: the one of them that is always there.
    """
    if not path.exists() and not path.is_symlink():
        return
    if path.is_symlink() or not path.is_dir():
        what = "is a link" if path.is_symlink() else "is a file"
        raise ConfigurationError(f"{option}: {path} {what}; name a folder", check="not-a-folder")
    names = sorted(entry.name for entry in path.iterdir())
    others = [name for name in names if name not in own]
    if names and (others or mark not in names):
        there = f"has {', '.join((others or names)[:4])}{', ...' if len(others or names) > 4 else ''}"
        why = "which this command did not write" if others else f"and no {mark}"
        raise ConfigurationError(
            f"{option}: {path} {there}, {why}, so it is not replaced, even by force; name another folder",
            check="not-own-folder",
        )


def check_makeable(path: Path, *, option: str = "--out") -> None:
    """Refuse a path at which no file can be made, now and not after hours of work; its folders may be missing.

    Raises ConfigurationError that names the option.
    """
    parent = next(above for above in path.absolute().parents if above.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{option}: no file can be made in {parent}; name another place")


def remove_tree(folder: Path) -> None:
    """Remove a folder, or a file, also one whose owner may not write to it; raises OSError for what stays."""
    if not folder.is_dir() or folder.is_symlink():
        folder.unlink(missing_ok=True)
        return
    for current, _, _ in os.walk(folder):
        os.chmod(current, 0o700)
    shutil.rmtree(folder)


def make_private_folder() -> Path:
    """A folder for temporary files that only this user can enter; raises EnvironmentFailure if its name is long.

    Data loaders make sockets there, and wait for ever where a path is longer than the kernel takes for one.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedcore-"))
    if len(str(folder).encode()) > _MAX_PATH_FOR_SOCKETS:
        folder.rmdir()
        raise EnvironmentFailure(f"{folder} is too long for a socket's path; set TMPDIR to a shorter folder")
    return folder


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """`make_private_folder`, removed at the end."""
    folder = make_private_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def full_disk_named(text: str) -> Iterator[None]:
    """Raise StorageFull(text) where the block finds that a disk or a quota is full; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StorageFull(text) from error
        raise


class Lock:
    """Held by one process alone, until it is closed or the process ends; use as a context manager.

    path: a folder that is there, which may be on a read-only volume, or a file, which is made.
    Raises ConfigurationError(taken) when another process holds it, EnvironmentFailure when it cannot be locked.
    """

    def __init__(self, path: Path, *, in_use: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
        try:
            self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EnvironmentFailure(f"{path} cannot be opened: {error.strerror}") from error
        try:
            locked = not any(_take(self._descriptor, pause) for pause in (0.0, *_LOOKED_AT_SECONDS))
        except OSError as error:
            os.close(self._descriptor)
            raise EnvironmentFailure(f"{path} cannot be locked: {error.strerror}") from error
        if locked:
            os.close(self._descriptor)
            raise ConfigurationError(in_use, check="taken")

    def close(self) -> None:
        """Let another process have it; does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the `Lock` of a folder; raises OSError if the folder cannot be opened."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return not _take(descriptor, 0.0, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _take(descriptor: int, pause: float, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file after `pause` seconds; whether nobody else held it. Raises OSError."""
    time.sleep(pause)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True
