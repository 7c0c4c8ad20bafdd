"""The coin's matrix, times a vector that comes in blocks, and the check of a sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.secagg.norm.statement import WORD_BITS

_BLOCK_WORDS = 64
"""OpenBLAS shares a larger product out to threads, which wait busily for longer than the product takes."""
_PER_BYTE = 4
_DIGITS = np.array([[(0, 1, 0, -1)[byte >> 2 * i & 3] for i in range(_PER_BYTE)] for byte in range(256)], np.float64)


def project(coin: bytes, projections: int, columns: int, blocks: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """A times a vector [words, columns] of numbers below 2^40 in magnitude, exact: [projections, columns].

    Args:
        coin: 32 bytes.
        projections: Rows of A.
        columns: Numbers of a word.
        blocks: The vector from its first word on, in blocks [m, columns] of any m.

    Raises:
        UsageError: A block has another shape.
    """
    total = np.zeros((projections, columns), np.int64)
    at, matrix = 0, np.zeros((0, 0))
    for part in _within_blocks(columns, blocks):
        start = at % _BLOCK_WORDS
        if start == 0:
            matrix = _matrix(coin, projections, at // _BLOCK_WORDS)
        total += (matrix[:, start : start + len(part)] @ part.astype(np.float64)).astype(np.int64)
        at += len(part)
    return total


def _within_blocks(columns: int, blocks: Iterable[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    """The same words in pieces, none of which crosses a border between blocks of A."""
    at = 0
    for block in blocks:
        if block.shape != (len(block), columns):
            raise UsageError(f"a block of a vector has the shape {block.shape}, not {columns} numbers a word")
        rest = block
        while len(rest):
            room = _BLOCK_WORDS - at % _BLOCK_WORDS
            piece, rest = rest[:room], rest[room:]
            at += len(piece)
            yield piece


def _matrix(coin: bytes, projections: int, block: int) -> NDArray[np.float64]:
    """Block of A, by ChaCha20 with the block's number as nonce: two bits an entry."""
    nonce = bytes(4) + block.to_bytes(12, "little")
    stream = Cipher(algorithms.ChaCha20(coin, nonce), mode=None).encryptor()
    drawn = np.frombuffer(stream.update(bytes(projections * _BLOCK_WORDS // _PER_BYTE)), np.uint8)
    return _DIGITS.take(drawn, axis=0).reshape(projections, _BLOCK_WORDS)


def project_words(coin: bytes, projections: int, blocks: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """A times a vector of words that comes in blocks [m], modulo 2^64: [projections]."""
    limbs = (np.ascontiguousarray(block).view(np.uint32).reshape(-1, 2).astype(np.int64) for block in blocks)
    low, high = project(coin, projections, 2, limbs).astype(np.uint64).T
    projected: NDArray[np.uint64] = low + (high << np.uint64(WORD_BITS // 2))
    return projected


def join(lanes: NDArray[np.int64], field_bits: int) -> NDArray[np.uint64]:
    """Words [m] of steps [m, lanes], modulo 2^64."""
    shifts = np.arange(lanes.shape[1], dtype=np.uint64) * np.uint64(field_bits)
    joined: NDArray[np.uint64] = (lanes.astype(np.uint64) << shifts).sum(axis=1, dtype=np.uint64)
    return joined


def sum_holds(
    coin: bytes,
    words: Iterable[NDArray[np.uint64]],
    pads: NDArray[np.uint64],
    values: Iterable[NDArray[np.uint64]],
) -> bool:
    """Whether a sum is one of the vectors that its clients proved.

    Args:
        coin: 32 bytes.
        words: The sum's words, in blocks [m] of any m.
        pads: The sum of the pads [projections].
        values: Of each client in the sum, the t [projections] of its proof.
    """
    from_proofs = np.zeros_like(pads)
    for value in values:
        from_proofs += value
    return bool(np.array_equal(project_words(coin, len(pads), words) + pads, from_proofs))
