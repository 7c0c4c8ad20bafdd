"""Memory for large vectors that the system may move to the disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LARGE_BYTES: Final = 1 << 27
"""What takes less is not worth a file."""


def mapped_zeros(words: int, folder: Path | None = None) -> NDArray[np.uint64]:
    """Zeros, uint64 [words], in a temporary file without a name, to which the system moves them if memory is short.

    The file has its room from the start, since a mapped one that finds the disk full ends the process. If the disk has
    no room, or the system cannot promise it, they are in memory.

    Args:
        folder: where the file is; None for the system's own place, which may be memory itself.
    """
    with contextlib.suppress(AttributeError, OSError), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, 8 * words)
        return np.frombuffer(mmap.mmap(file.fileno(), 8 * words), np.uint64)
    return np.zeros(words, np.uint64)


def give_back(part: NDArray[Any] | memoryview) -> None:
    """Give back the memory of a part of a mapped file, whose content is read again when it is needed.

    What is changed in it stays, since it belongs to the file. Does nothing for what lies in plain memory.
    """
    array = part if isinstance(part, np.ndarray) else np.frombuffer(part, np.uint8)
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, mmap.mmap) or not array.nbytes:
        return
    start = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    first = start - start % mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, first, start + array.nbytes - first)
