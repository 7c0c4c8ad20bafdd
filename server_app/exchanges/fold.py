"""Adding a stored vector to the sum, by ranges: memory stays flat and every core has work."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError
from server_app.storage.blobs import write_all

BLOCK_WORDS: Final = 1 << 16
"""512 KiB: a block and its part of the sum stay in a core's cache between reading, adding and writing."""
MIN_WORDS_PER_THREAD: Final = 1 << 18
WORD_BYTES: Final = 8


def fold_file(path: Path, total: Path, *, threads: int) -> None:
    """Add the little-endian 64-bit words in `path` to those in `total` in place, modulo 2^64.

    Raises UsageError where the files differ in length, before anything is added; OSError. The caller sees to it that
    only one vector at a time is added to one sum.
    """
    with opened(path, os.O_RDONLY) as vector, opened(total, os.O_RDWR) as whole:
        size, words = os.fstat(vector).st_size, os.fstat(whole).st_size // WORD_BYTES
        if size != words * WORD_BYTES:
            raise UsageError(f"a vector of {size} bytes does not fit a sum of {words} words")
        workers = max(1, min(threads, words // MIN_WORDS_PER_THREAD))
        edges = [words * part // workers for part in range(workers + 1)]
        with ThreadPoolExecutor(workers, thread_name_prefix="fold") as pool:
            jobs = [pool.submit(_fold_range, vector, whole, *span) for span in itertools.pairwise(edges)]
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
    """Fill `words` from the file's word `start` on; raises UsageError where it ends before."""
    view, offset = words.data.cast("B"), start * WORD_BYTES
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise UsageError("a stored vector became shorter while it was read")
        view, offset = view[count:], offset + count


def _fold_range(vector: int, whole: int, start: int, stop: int) -> None:
    added, into = (np.empty(min(BLOCK_WORDS, stop - start), dtype="<u8") for _ in range(2))
    for first in range(start, stop, BLOCK_WORDS):
        count = min(BLOCK_WORDS, stop - first)
        block, part = added[:count], into[:count]
        read_words(vector, block, first)
        read_words(whole, part, first)
        np.add(part, block, out=part)
        write_all(whole, part.data.cast("B"), first * WORD_BYTES)
