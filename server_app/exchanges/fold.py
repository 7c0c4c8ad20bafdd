"""Adding a stored vector to the sum, by ranges: memory stays flat and every core has work."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError

BLOCK_WORDS: Final = 1 << 16
"""512 KiB: a block and its part of the sum stay in a core's cache between reading and adding."""
MIN_WORDS_PER_THREAD: Final = 1 << 18
WORD_BYTES: Final = 8


def fold_file(path: Path, total: NDArray[np.uint64], *, threads: int) -> None:
    """Add the little-endian 64-bit words in `path` to `total` `[words]` in place, modulo 2^64.

    Raises UsageError where the file has another length, before anything is added. The caller sees to
    it that only one vector at a time is added to one sum.
    """
    size = path.stat().st_size
    if size != total.size * WORD_BYTES:
        raise UsageError(f"a vector of {size} bytes does not fit a sum of {total.size} words")
    workers = max(1, min(threads, total.size // MIN_WORDS_PER_THREAD))
    edges = [total.size * part // workers for part in range(workers + 1)]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(workers, thread_name_prefix="fold") as pool:
            ranges = itertools.pairwise(edges)
            jobs = [pool.submit(_fold_range, descriptor, total, *span) for span in ranges]
            for job in jobs:
                job.result()
    finally:
        os.close(descriptor)


def _fold_range(descriptor: int, total: NDArray[np.uint64], start: int, stop: int) -> None:
    buffer = np.empty(min(BLOCK_WORDS, stop - start), dtype="<u8")
    for first in range(start, stop, BLOCK_WORDS):
        block = buffer[: min(BLOCK_WORDS, stop - first)]
        _read_exactly(descriptor, block.data.cast("B"), first * WORD_BYTES)
        part = total[first : first + block.size]
        np.add(part, block, out=part)


def _read_exactly(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise UsageError("a stored vector became shorter while it was read")
        view, offset = view[count:], offset + count
