"""A vector as large as a model in a file of the spool, a few MiB at a time in memory.

The system keeps such a file in memory as long as there is room, so it costs copies between the two and no waiting; but
what the process itself takes does not grow with the model. It is written to by plain writes and not by a writable map,
because a full disk then shows as an error and not as a signal that ends the process.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.secagg import MaskTerm, apply_masks
from fedcore.system.files import full_disk_named
from server_app.operation.server_view import MOST_NUMBERS
from server_app.storage.blobs import discard, write_all

BLOCK_WORDS: Final = 1 << 16
"""512 KiB: a block and its part of the sum stay in a core's cache between reading, adding and writing."""
MIN_WORDS_PER_THREAD: Final = 1 << 18
WORD_BYTES: Final = 8


def fold_file(path: Path, total: Path, *, threads: int, start: int | None = None) -> None:
    """Add the little-endian 64-bit words in `path` to those in `total` in place, modulo 2^64.

    Raises UsageError if the files do not fit, before anything is added; OSError. The caller sees to it that only one
    vector at a time is added to one sum.

    Args:
        path: file of the vector.
        total: file of the sum.
        threads: at most so many.
        start: the shorter of both lies at this word of the longer one; None if both have to be of one length.
    """
    with opened(path, os.O_RDONLY) as vector, opened(total, os.O_RDWR) as sum_file:
        size, into = os.fstat(vector).st_size, os.fstat(sum_file).st_size
        words, longer, first = min(size, into) // WORD_BYTES, max(size, into), start or 0
        if size % WORD_BYTES or (size != into if start is None else (first + words) * WORD_BYTES > longer):
            raise UsageError(f"a vector of {size} bytes does not fit a sum of {into // WORD_BYTES} words")
        workers = max(1, min(threads, words // MIN_WORDS_PER_THREAD))
        edges = [words * part // workers for part in range(workers + 1)]
        firsts = (first, 0) if size > into else (0, first)
        with ThreadPoolExecutor(workers, thread_name_prefix="fold") as pool:
            jobs = [pool.submit(_fold_range, vector, sum_file, *span, *firsts) for span in itertools.pairwise(edges)]
            for job in jobs:
                job.result()


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_words(descriptor: int, words: NDArray[np.uint64], start: int) -> None:
    """Fill `words` from the file's word `start` on; raises UsageError if it ends before."""
    view, offset = words.data.cast("B"), start * WORD_BYTES
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise UsageError("a stored vector became shorter while it was read")
        view, offset = view[count:], offset + count


def _fold_range(vector: int, sum_file: int, start: int, stop: int, vector_first: int, sum_first: int) -> None:
    added, into = (np.empty(min(BLOCK_WORDS, stop - start), dtype="<u8") for _ in range(2))
    for first in range(start, stop, BLOCK_WORDS):
        count = min(BLOCK_WORDS, stop - first)
        block, part = added[:count], into[:count]
        read_words(vector, block, vector_first + first)
        read_words(sum_file, part, sum_first + first)
        np.add(part, block, out=part)
        write_all(sum_file, part.data.cast("B"), (sum_first + first) * WORD_BYTES)


RANGE_WORDS: Final = 1 << 19
"""4 MiB: long enough that all threads share the masks of it."""
_FULL: Final = "the disk is full; there is no room for a sum"
_CANNOT_ALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class SumFile:
    """64-bit words, little endian, in a file.

    All methods but `discard` take a while, and raise OSError.

    path
        The file, empty at first. This object alone writes to it and removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def allocate(self, words: int) -> None:
        """Make an empty file that many zeros, with their place on the disk; raises StorageFull if there is none."""
        with full_disk_named(_FULL), opened(self.path, os.O_RDWR) as file:
            _allocate(file, words * WORD_BYTES)

    def add(self, vector: Path, *, threads: int, start: int | None = None) -> None:
        """Add the words in the file `vector`, as `fold_file` does. Raises what that raises."""
        fold_file(vector, self.path, threads=threads, start=start)

    def apply_masks(self, terms: Sequence[MaskTerm], *, threads: int) -> None:
        """Add the streams of all terms, as `fedcore.secagg.apply_masks`; raises StorageFull if that needs room."""
        with full_disk_named(_FULL), opened(self.path, os.O_RDWR) as file:
            words = os.fstat(file).st_size // WORD_BYTES
            buffer = np.empty(min(RANGE_WORDS, words), "<u8")
            for start in range(0, words, RANGE_WORDS):
                part = buffer[: min(RANGE_WORDS, words - start)]
                read_words(file, part, start)
                apply_masks(part, terms, threads=threads, offset=start)
                write_all(file, part.data.cast("B"), start * WORD_BYTES)

    def beginning(self) -> NDArray[np.uint64]:
        """The first words, as many as people are shown."""
        return first_words(self.path)

    def mapped(self) -> MappedWords:
        """All words, to read."""
        return MappedWords(self.path)

    def discard(self) -> None:
        """Remove the file."""
        discard(self.path)


class MappedWords:
    """The words of a file, to read.

    words
        `[words]`, read-only.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.words: NDArray[np.uint64] = np.frombuffer(self._map, "<u8")

    def free_memory(self) -> None:
        """Free the memory of the words read so far; they are read from the file again if needed."""
        self._map.madvise(mmap.MADV_DONTNEED)


def first_words(path: Path) -> NDArray[np.uint64]:
    """The first words of a file, as many as people are shown."""
    with path.open("rb") as file:
        return np.frombuffer(file.read(MOST_NUMBERS * WORD_BYTES), "<u8").astype(np.uint64)


def _allocate(descriptor: int, size: int) -> None:
    """Make an empty file `size` bytes of zeros, on the disk too if the system can promise that."""
    os.ftruncate(descriptor, size)
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE:
                raise
