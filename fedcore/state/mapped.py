"""Memory for large vectors that the system may move to the disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from typing import Final

import numpy as np
from numpy.typing import NDArray

LARGE_BYTES: Final = 1 << 27
"""What takes less is not worth a file."""


def mapped_zeros(words: int) -> NDArray[np.uint64]:
    """Zeros, uint64 [words], in a temporary file without a name, to which the system moves them if memory is short.

    The file has its room from the start, since a mapped one that finds the disk full ends the process. If the disk has
    no room, or the system cannot promise it, they are in memory.
    """
    with contextlib.suppress(AttributeError, OSError), tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, 8 * words)
        return np.frombuffer(mmap.mmap(file.fileno(), 8 * words), np.uint64)
    return np.zeros(words, np.uint64)
