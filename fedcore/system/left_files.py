"""The files that somebody else's code left in a folder, read so that no link or race leads out of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

MOST_FILES: Final = 1000
MOST_BYTES: Final = 1 << 30
"""Of all files together."""


def is_plain_path(path: str) -> bool:
    """Whether a path leads to a file below any folder that it is joined to: no dots, no roots, nothing hidden."""
    parts = path.split("/")
    sound = all(part.isprintable() and part and not part.startswith(".") and "\\" not in part for part in parts)
    return sound and len(parts) <= 10 and len(path.encode()) <= 300


@dataclass(slots=True)
class LeftFiles:
    """The files below a folder.

    left_out: how many were passed over, once all were read.

    Passed over are links, also hard ones, what is no file, names that are hidden or cannot be printed, and what is
    beyond MOST_FILES or MOST_BYTES; folders whose files would have no plain path count once.
    """

    folder: Path
    left_out: int = field(default=0, init=False)

    def read(self) -> Iterator[tuple[str, BinaryIO, int]]:
        """Path below the folder with slashes, the open file, its size; in the order of the paths of folders."""
        if not self.folder.is_dir():
            return  # the app was not run, or removed it
        files, size = 0, 0
        for current, folders, names, descriptor in os.fwalk(self.folder, follow_symlinks=False):
            below = os.path.relpath(current, self.folder)
            visible = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
            # Below others no file has a plain path; and Python walks no deeper than its stack.
            folders[:] = [name for name in visible if is_plain_path(_joined(below, name))]
            self.left_out += len(visible) - len(folders)
            for name in sorted(names):
                path = _joined(below, name)
                file = _open(name, descriptor) if is_plain_path(path) else None
                if file is None:
                    self.left_out += 1
                    continue
                with file:
                    length = os.fstat(file.fileno()).st_size
                    if files >= MOST_FILES or size + length > MOST_BYTES:
                        self.left_out += 1
                        continue
                    files, size = files + 1, size + length
                    yield path, file, length


def open_left(path: Path) -> BinaryIO | None:
    """One file that somebody else's code left; None if it is none, or a link."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _open(path.name, descriptor)
    finally:
        os.close(descriptor)


def remove_left(folder: Path) -> None:
    """Remove a folder that somebody else's code may write to, or may have; what cannot be removed stays.

    Folders may be nested deeper than Python's stack and the length of paths allow, so each is first moved next to
    `folder`, where that code cannot exchange it for a link.
    """
    pending = [folder]
    while pending:
        current = pending.pop()
        with contextlib.suppress(OSError):
            if current.is_symlink():
                current.unlink()
                continue
            with os.scandir(current) as entries:
                children = list(entries)
            for entry in children:
                pending += _removed(entry, folder)
            current.rmdir()


def _removed(entry: os.DirEntry[str], folder: Path) -> list[Path]:
    """Remove a file or a link; move a folder next to `folder`, and say where it is."""
    with contextlib.suppress(OSError):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            return []
        target = folder.with_name(f"{folder.name}-{secrets.token_hex(8)}")
        os.rename(entry.path, target)
        return [target]
    return []


def _joined(below: str, name: str) -> str:
    return name if below == "." else f"{below}/{name}"


def _open(name: str, folder: int) -> BinaryIO | None:
    try:
        # Neither through a link, nor waiting for somebody to write to a pipe.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")
