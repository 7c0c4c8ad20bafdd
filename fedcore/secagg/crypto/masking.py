"""Mask streams, and adding many of them to a vector at the speed of the cipher.

A stream is ChaCha20 (RFC 8439) under a full 256-bit seed, read as little-endian 64-bit words. Chunk i of 64 MiB has
the nonce i (96 bits, little endian) and the block counter starts at zero in each, so any range of the stream can be
made alone: by a thread, by a server that folds by ranges, or by a GPU, bit for bit the same.

Speed: the vector is walked in blocks that stay in the core's cache; all streams are added to a block before the next
is touched, and the cipher writes into one buffer that is used again (`update_into`, which releases the interpreter
lock). What remains is the cipher itself and one addition from cache. Threads share a long vector by ranges, and a
short one, which many streams cover, by streams: calls stay long, and each stream is opened once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.secagg.crypto.keys import KEY_BYTES, Secret

WORD_BYTES = 8
CIPHER_BLOCK_BYTES = 64
CHUNK_BYTES = 64 * 1024 * 1024
"""Bytes of a stream under one nonce: 2^20 cipher blocks, far from the end of the 32-bit block counter."""
CHUNK_WORDS = CHUNK_BYTES // WORD_BYTES
BLOCK_WORDS = 256 * 1024 // WORD_BYTES
"""Words handled at once: vector block, zeros and keystream (256 KiB each) fit in a second-level cache, and a call is
long enough for threads to pay off."""
_REST_WORDS = BLOCK_WORDS // 8
"""A rest of up to so many words goes with the block before it: calls for it alone would cost more than its words."""
GROUP_TERMS = 256
"""Streams open at the same time, so that thousands of masks do not hold thousands of cipher states."""
WORKER_BYTES = 1024 * 1024
"""Keystream (about 0.2 ms of it) below which another thread costs more than it saves."""
_SHARES = 4
"""Ranges for each thread, so that a slow one does not keep the others waiting."""

_MOST_WORDS = BLOCK_WORDS + _REST_WORDS
_ZEROS = memoryview(bytes(_MOST_WORDS * WORD_BYTES))
_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTerm:
    """One mask: the stream of `seed` (32 bytes), added (`sign` 1) or subtracted (`sign` -1).

    A round is a list of such terms. Nothing else in the protocol's state machines knows that masks come in pairs.
    """

    sign: Literal[1, -1]
    seed: Secret

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise UsageError("the sign of a mask is 1 or -1")
        if len(self.seed.reveal()) != KEY_BYTES:
            raise UsageError(f"the seed of a mask has {KEY_BYTES} bytes, all of them random")

    def inverse(self) -> MaskTerm:
        """The term that removes this one."""
        return MaskTerm(sign=-1 if self.sign == 1 else 1, seed=self.seed)


class Masker(Protocol):
    """What adds masks to a range of a vector: `apply_masks`, or a device that holds the words of the range."""

    def __call__(
        self, words: NDArray[np.uint64], terms: Iterable[MaskTerm], *, threads: int = 1, offset: int = 0
    ) -> None:
        """Leave the masked words [offset, offset + count) in `words` ([count], writable, contiguous)."""
        ...


def apply_masks(
    words: NDArray[np.uint64],
    terms: Iterable[MaskTerm],
    *,
    threads: int = 1,
    offset: int = 0,
) -> None:
    """Add every term's stream to `words` in place, modulo 2^64.

    `words` is a writable, contiguous uint64 vector [count]: the words `offset` .. `offset + count` of the whole
    vector. The result does not depend on `threads` nor on how the whole is cut into ranges.
    """
    check_vector(words)
    if threads < 1 or offset < 0:
        raise UsageError("threads must be 1 or more, offset 0 or more")
    own_terms = tuple(terms)
    workers = min(threads, words.nbytes * len(own_terms) // WORKER_BYTES)
    if workers <= 1:
        _Worker(own_terms).add(words, offset)
    elif words.size >= workers * BLOCK_WORDS:
        _share_ranges(words, own_terms, offset, workers)
    else:
        _share_terms(words, own_terms, offset, workers)


def check_vector(words: NDArray[np.uint64]) -> None:
    """Raise UsageError unless `words` is a writable, contiguous vector of native uint64."""
    if not isinstance(words, np.ndarray) or words.dtype != np.dtype(np.uint64) or words.ndim != 1:
        raise UsageError("a masked vector is a one-dimensional NumPy array of uint64", check="vector")
    if not words.flags.c_contiguous or not words.flags.writeable:
        raise UsageError("a masked vector must be contiguous and writable: masks are added in place", check="vector")


def _share_ranges(words: NDArray[np.uint64], terms: Sequence[MaskTerm], offset: int, workers: int) -> None:
    """Every thread adds all streams to ranges of its own."""

    def add(ranges: Iterator[tuple[int, int]]) -> None:
        worker = _Worker(terms)
        for start, stop in ranges:
            worker.add(words[start:stop], offset + start)

    _in_threads(add, _cut(words.size, workers * _SHARES, unit=BLOCK_WORDS), workers)


def _share_terms(words: NDArray[np.uint64], terms: Sequence[MaskTerm], offset: int, workers: int) -> None:
    """Every thread adds streams of its own to a vector of its own; their sum is the same in any order."""

    def add(parts: Iterator[tuple[int, int]]) -> NDArray[np.uint64]:
        total = np.zeros_like(words)
        for start, stop in parts:
            _Worker(terms[start:stop]).add(total, offset)
        return total

    for total in _in_threads(add, _cut(len(terms), workers * _SHARES, unit=1), workers):
        np.add(words, total, out=words)


def _in_threads(work: Callable[[Iterator[_Work]], _Result], ranges: Iterable[_Work], workers: int) -> list[_Result]:
    """Call `work` in each of `workers` threads, with an iterator over the ranges that the others leave to it."""
    # A deque, because its popleft is safe to call from several threads.
    pending = deque(ranges)
    workers = min(workers, len(pending))

    def take() -> Iterator[_Work]:
        while True:
            try:
                yield pending.popleft()
            except IndexError:
                return

    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="mask") as pool:
        jobs = [pool.submit(work, take()) for _ in range(workers)]
        return [job.result() for job in jobs]


def _cut(count: int, parts: int, *, unit: int) -> Iterator[tuple[int, int]]:
    """Cut `count` > 0 things into at most `parts` ranges of equally many units, but for one and for the last unit."""
    units = -(-count // unit)
    ranges = min(parts, units)
    borders = (min(units * number // ranges * unit, count) for number in range(ranges + 1))
    return pairwise(borders)


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    """The ranges of `count` words that are handled at once."""
    start = 0
    while start < count:
        stop = count if count - start <= _MOST_WORDS else start + BLOCK_WORDS
        yield start, stop
        start = stop


class _Worker:
    """One thread's means to add `terms`: a buffer for keystream, and streams that stay open if they are few."""

    def __init__(self, terms: Sequence[MaskTerm]) -> None:
        self._terms = terms
        self._few = [_Stream(term) for term in terms] if len(terms) <= GROUP_TERMS else None
        self._keystream = np.empty(_MOST_WORDS, dtype="<u8")

    def add(self, words: NDArray[np.uint64], offset: int) -> None:
        """Add all streams to `words`, which begin at word `offset`; cut at chunk borders, where the nonce changes."""
        start = 0
        while start < words.size:
            position = offset + start
            stop = min(words.size, start + CHUNK_WORDS - position % CHUNK_WORDS)
            for streams in self._groups():
                self._add_segment(words[start:stop], streams, position)
            start = stop

    def _groups(self) -> Iterator[Sequence[_Stream]]:
        if self._few is not None:
            yield self._few
            return
        for first in range(0, len(self._terms), GROUP_TERMS):
            yield [_Stream(term) for term in self._terms[first : first + GROUP_TERMS]]

    def _add_segment(self, words: NDArray[np.uint64], streams: Sequence[_Stream], position: int) -> None:
        """Add streams to words that lie within one chunk and begin at word `position`."""
        for start, stop in _blocks(words.size):
            block = words[start:stop]
            mask = self._keystream[: block.size]
            # The cipher wants bytes; these views serve all streams of the block.
            zeros, target = _ZEROS[: block.nbytes], mask.view(np.uint8).data
            for stream in streams:
                cipher = stream.cipher if start else stream.seek(position)
                cipher.update_into(zeros, target)
                stream.accumulate(block, mask, out=block)


class _Stream:
    """The stream of one term.

    It is opened at its first use and not before: to open one holds the interpreter lock for longer than anything else
    here, and a thread that opened hundreds in a row would keep all others waiting. To move an open one costs little.
    """

    __slots__ = ("_seed", "accumulate", "cipher")

    cipher: CipherContext

    def __init__(self, term: MaskTerm) -> None:
        self.accumulate = np.add if term.sign == 1 else np.subtract
        self._seed: Secret | None = term.seed

    def seek(self, position: int) -> CipherContext:
        """The cipher, whose next byte belongs to word `position`.

        `cryptography` takes RFC 8439's block counter (32 bits, little endian) and nonce (96 bits) as one 16-byte
        value.
        """
        chunk, word = divmod(position, CHUNK_WORDS)
        counter, skip = divmod(word * WORD_BYTES, CIPHER_BLOCK_BYTES)
        nonce = counter.to_bytes(4, "little") + chunk.to_bytes(12, "little")
        if self._seed is None:
            self.cipher.reset_nonce(nonce)
        else:
            self.cipher = Cipher(algorithms.ChaCha20(self._seed.reveal(), nonce), mode=None).encryptor()
            self._seed = None
        if skip:
            self.cipher.update(bytes(skip))
        return self.cipher
