"""A random rotation of an update, and a random subset of what comes out: few bits for each coordinate go further so.

A scale has to cover the largest element, and a few bits below it say nothing of the others. A rotation spreads every
element over many: afterwards all are about alike, and the largest is 4 to 5 times the mean (Suresh et al., "Distributed
Mean Estimation with Limited Communication", 2017, section 3; Kairouz et al., "The Distributed Discrete Gaussian
Mechanism for Federated Learning", 2021, section 4.2). Random signs, then a Walsh-Hadamard transform, which takes
log2(R) additions an element and is its own inverse: H D x there, D H y back, over sqrt(R). If even less is to be
sent, a random subset of the rotated coordinates is (Konecny et al., "Federated Learning: Strategies for Improving
Communication Efficiency", 2016, sections 2 and 3); any of them holds a little of all elements.

A tensor is cut into units of about the same size, at most UNIT elements. The elements of a unit are the rows of a
matrix [rows, columns], the rest of it zero; each column is rotated, and whole rows are left out. So every step works on
contiguous memory that fits a cache. Signs and rows follow from a public seed, alike for all clients, by ChaCha20 (RFC
8439). Sums and differences of float32 in a fixed order: the same bits on every machine.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedcore.state import TensorSpec
from fedcore.state.walsh_hadamard import walsh_hadamard

UNIT: Final = 1 << 16
"""Most elements of a unit: 256 KiB as float32."""

_MOST_ROWS: Final = 1 << 10
_LEAST_COLUMNS: Final = 16
"""So rows that are only partly used make a matrix larger by a sixteenth at most."""

_SIGNS: Final = b"fedcore/codec/rotation/signs/v1"
_SUBSET: Final = b"fedcore/codec/rotation/subset/v1"
_SEED: Final = b"fedcore/codec/rotation/seed/v1"


def rotation_seed(model_sha256: str) -> str:
    """The seed, hex, for all sums of updates to one model: one that is asked for again is rotated alike."""
    return hashlib.sha256(_SEED + model_sha256.encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Elements [start, stop) of a tensor with scale `index`, as a matrix of which `sent_rows` are sent.

    number: of all units of a section.
    position: the first of its fields.
    per_word: of these to a word.
    """

    number: int
    index: int
    spec: TensorSpec
    start: int
    stop: int
    position: int
    sent_share: float
    per_word: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """R, a power of two."""
        return rows_of(self.size)

    @property
    def columns(self) -> int:
        """How many vectors of R elements are rotated."""
        return -(-self.size // self.rows)

    @property
    def sent_rows(self) -> int:
        """How many of the rows are sent."""
        return sent_rows(self.rows, self.sent_share)

    @property
    def values(self) -> int:
        """How many coordinates are sent."""
        return self.sent_rows * self.columns

    @property
    def fields(self) -> int:
        """Fields that they take: whole words, so that no two units share one; what is left over is zero updates."""
        return fields_of(self.size, self.sent_share, self.per_word)


def rows_of(size: int) -> int:
    """Rows of the matrix of a unit with `size` elements."""
    return min(_MOST_ROWS, 1 << max(size // _LEAST_COLUMNS, 1).bit_length() - 1)


def sent_rows(rows: int, share: float) -> int:
    """How many of `rows` are sent."""
    return max(1, min(rows, math.ceil(rows * share)))


def fields_of(size: int, share: float, per_word: int) -> int:
    """Fields of a unit with `size` elements, a multiple of `per_word`."""
    rows = rows_of(size)
    return -(-sent_rows(rows, share) * -(-size // rows) // per_word) * per_word


def cuts(size: int) -> list[tuple[int, int]]:
    """(start, stop) of the units of a tensor."""
    count = -(-size // UNIT)
    return [(number * size // count, (number + 1) * size // count) for number in range(count)]


def tensor_fields(size: int, share: float, per_word: int) -> int:
    """Fields of a tensor with `size` elements."""
    return sum(fields_of(stop - start, share, per_word) for start, stop in cuts(size))


class Rotation:
    """Rotates the units of one section, for one thread: it has buffers of its own."""

    def __init__(self, seed: str) -> None:
        self._signs_key, self._subset_key = (
            hashlib.sha256(domain + bytes.fromhex(seed)).digest() for domain in (_SIGNS, _SUBSET)
        )
        # R * columns is below size + R.
        self._matrix = np.empty(UNIT + _MOST_ROWS, np.float32)
        self._spare = np.empty_like(self._matrix)

    def matrix(self, unit: Unit) -> NDArray[np.float32]:
        """Room for a unit, [rows * columns], with zeros behind its elements; valid until the next call."""
        flat = self._matrix[: unit.rows * unit.columns]
        flat[unit.size :] = 0
        return flat

    def rotate(self, unit: Unit, flat: NDArray[np.float32]) -> None:
        """H D x / sqrt(R) of each column of `flat` ([rows * columns]), in place."""
        self._flip(unit, flat)
        transform(flat, unit.rows, self._spare)

    def rotate_back(self, unit: Unit, flat: NDArray[np.float32]) -> None:
        """The inverse, in place."""
        transform(flat, unit.rows, self._spare)
        self._flip(unit, flat)

    def subset(self, unit: Unit) -> NDArray[np.int64]:
        """The rows that are sent ([kept], ascending). Of two shares the smaller one's are among the larger one's."""
        if unit.sent_rows == unit.rows:
            return np.arange(unit.rows)
        draws = np.frombuffer(_keystream(self._subset_key, unit.number, 8 * unit.rows), "<u8")
        return np.sort(np.argsort(draws, kind="stable")[: unit.sent_rows])

    def _flip(self, unit: Unit, flat: NDArray[np.float32]) -> None:
        """Multiply by random signs: flip the highest bit of each float."""
        stream = np.frombuffer(_keystream(self._signs_key, unit.number, -(-flat.size // 8)), np.uint8)
        bits = np.unpackbits(stream, count=flat.size, bitorder="little").astype(np.uint32)
        np.left_shift(bits, np.uint32(31), out=bits)
        words = flat.view(np.uint32)
        np.bitwise_xor(words, bits, out=words)


def transform(flat: NDArray[np.float32], rows: int, spare: NDArray[np.float32]) -> None:
    """The Walsh-Hadamard transform of each column of a matrix ([rows * columns]), over sqrt(rows), in place.

    `spare` has at least as many elements. It is its own inverse, but for rounding.
    """
    source = walsh_hadamard(flat, rows, spare[: flat.size])
    np.multiply(source, np.float32(1 / math.sqrt(rows)), out=flat)


def _keystream(key: bytes, number: int, count: int) -> bytes:
    """`count` bytes of ChaCha20 under a key, with the number of the unit for its nonce."""
    nonce = bytes(4) + number.to_bytes(12, "little")
    return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(count))
