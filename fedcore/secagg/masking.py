"""Mask streams, and adding many of them to a vector at the speed of the cipher.

A stream is ChaCha20 (RFC 8439) under a full 256-bit seed, read as little-endian 64-bit words. Chunk i of 64 MiB has
the nonce i (96 bits, little endian) and the block counter starts at zero in each, so any range of the stream can be
made alone: by a thread, by a server that folds by ranges, or by a GPU, bit for bit the same.

Speed: the vector is walked in blocks that stay in the core's cache; all streams are added to a block before the next
is touched, and the cipher writes into one buffer that is used again (`update_into`, which releases the interpreter
lock). What remains is the cipher itself and one addition from cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.secagg.keys import KEY_BYTES, Secret

WORD_BYTES = 8
CIPHER_BLOCK_BYTES = 64
CHUNK_BYTES = 64 * 1024 * 1024
"""Bytes of a stream under one nonce: 2^20 cipher blocks, far from the end of the 32-bit block counter."""
CHUNK_WORDS = CHUNK_BYTES // WORD_BYTES
BLOCK_WORDS = 256 * 1024 // WORD_BYTES
"""Words handled at once: vector block, zeros and keystream (256 KiB each) fit in a second-level cache, and a call is
long enough for threads to pay off."""
GROUP_TERMS = 256
"""Streams open at the same time, so that thousands of masks do not hold thousands of cipher states."""

_ZEROS = memoryview(bytes(BLOCK_WORDS * WORD_BYTES))


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
    all_terms = tuple(terms)
    ranges = list(_split(words.size, threads))
    if len(ranges) <= 1:
        _apply_range(words, all_terms, offset)
        return
    with ThreadPoolExecutor(max_workers=len(ranges), thread_name_prefix="mask") as pool:
        jobs = [pool.submit(_apply_range, words[start:stop], all_terms, offset + start) for start, stop in ranges]
        for job in jobs:
            job.result()


def check_vector(words: NDArray[np.uint64]) -> None:
    """Raise UsageError unless `words` is a writable, contiguous vector of native uint64."""
    if not isinstance(words, np.ndarray) or words.dtype != np.dtype(np.uint64) or words.ndim != 1:
        raise UsageError("a masked vector is a one-dimensional NumPy array of uint64")
    if not words.flags.c_contiguous or not words.flags.writeable:
        raise UsageError("a masked vector must be contiguous and writable: masks are added in place")


def _split(count: int, parts: int) -> Iterator[tuple[int, int]]:
    """Cut `count` words into at most `parts` ranges of whole blocks (the last may be shorter)."""
    blocks = -(-count // BLOCK_WORDS)
    step = max(1, -(-blocks // parts)) * BLOCK_WORDS
    for start in range(0, count, step):
        yield start, min(start + step, count)


def _apply_range(words: NDArray[np.uint64], terms: Sequence[MaskTerm], offset: int) -> None:
    """One thread's share: cut at chunk borders, where the nonce changes."""
    keystream = np.empty(BLOCK_WORDS * WORD_BYTES, dtype=np.uint8)
    start = 0
    while start < words.size:
        position = offset + start
        stop = min(words.size, start + CHUNK_WORDS - position % CHUNK_WORDS)
        for first in range(0, len(terms), GROUP_TERMS):
            group = terms[first : first + GROUP_TERMS]
            _apply_segment(words[start:stop], group, position, keystream)
        start = stop


def _apply_segment(
    words: NDArray[np.uint64],
    terms: Sequence[MaskTerm],
    position: int,
    keystream: NDArray[np.uint8],
) -> None:
    """Add the streams of `terms` to words that lie within one chunk and begin at word `position`."""
    streams = [(term.sign, _open_stream(term.seed, position)) for term in terms]
    for start in range(0, words.size, BLOCK_WORDS):
        block = words[start : start + BLOCK_WORDS]
        size = block.size * WORD_BYTES
        mask = keystream[:size].view("<u8")
        for sign, stream in streams:
            stream.update_into(_ZEROS[:size], keystream.data[:size])
            if sign == 1:
                np.add(block, mask, out=block)
            else:
                np.subtract(block, mask, out=block)


def _open_stream(seed: Secret, position: int) -> CipherContext:
    """A ChaCha20 context whose next byte belongs to word `position`.

    `cryptography` takes RFC 8439's block counter (32 bits, little endian) and nonce (96 bits) as one 16-byte value.
    """
    chunk, word = divmod(position, CHUNK_WORDS)
    counter, skip = divmod(word * WORD_BYTES, CIPHER_BLOCK_BYTES)
    nonce = counter.to_bytes(4, "little") + chunk.to_bytes(12, "little")
    stream = Cipher(algorithms.ChaCha20(seed.reveal(), nonce), mode=None).encryptor()
    if skip:
        stream.update(bytes(skip))
    return stream
