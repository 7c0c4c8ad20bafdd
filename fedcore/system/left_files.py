"""The files that somebody else's code left in a folder, read so that no link or race leads out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from fedcore.wire import is_plain_path

MOST_FILES: Final = 1000
MOST_BYTES: Final = 1 << 30
"""Of all files together."""


@dataclass(slots=True)
class LeftFiles:
    """The files below a folder. left_out: how many were passed over, once all were read.

    Passed over are links, also hard ones, what is no file, names that are hidden or cannot be printed, and what is
    beyond MOST_FILES or MOST_BYTES.
    """

    folder: Path
    left_out: int = field(default=0, init=False)

    def read(self) -> Iterator[tuple[str, BinaryIO, int]]:
        """Path below the folder with slashes, the open file, its size; in the order of the paths of folders."""
        files, size = 0, 0
        for current, folders, names, descriptor in os.fwalk(self.folder, follow_symlinks=False):
            below = os.path.relpath(current, self.folder)
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
            for name in sorted(names):
                path = name if below == "." else f"{below}/{name}"
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
    """One file that somebody else's code left; None where it is none, or a link."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _open(path.name, descriptor)
    finally:
        os.close(descriptor)


def _open(name: str, folder: int) -> BinaryIO | None:
    try:
        # Neither through a link, nor waiting for somebody to write to a pipe.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")
