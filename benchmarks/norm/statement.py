"""What is proved: random projections of a vector of packed fields are short, so its norm is within a bound.

Elements are whole steps e, `field_bits` apart in words modulo 2^64: a word is sum 2^(b l) e_l over its lanes l. A coin
of the server, thrown once all masked vectors are there, gives a matrix A [k, words] with entries 0 (1/2), 1 and -1
(1/4 each). A client tells t = A x + pads modulo 2^64 [k]; the pads are k more words of its masked vector, to which it
committed before. It proves that the lanes p of A x have sum p^2 <= limit.

An honest vector of norm `bound` has E sum p^2 = k bound^2 / 2; since <a, e> is a sum of signs, the moments of sum p^2
are below those of chi-squared (Achlioptas 2003, lemma 5.2 and its proof), which gives `limit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from benchmarks.norm.group import ORDER

WORD_BITS = 64
ROWS = 128
"""Sums of random subsets that show all committed numbers to be short: one that is not passes each with 1/2 at most."""
HIDING_BITS = 64
COMPLETENESS_BITS = SOUNDNESS_BITS = 64
_BLOCK_WORDS = 256
_PER_BYTE = 4
_DIGITS = np.array([[(0, 1, 0, -1)[byte >> 2 * i & 3] for i in range(_PER_BYTE)] for byte in range(256)], np.float64)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Public values of one exchange.

    projections: k. elements: of the update. bound: L2 norm of an honest update, in steps; a 16th of 2^field_bits at
    most. folds: how often the last message is halved.
    """

    projections: int
    field_bits: int
    elements: int
    bound: int
    folds: int = 6

    @property
    def lanes(self) -> int:
        return WORD_BITS // self.field_bits

    @property
    def words(self) -> int:
        return -(-self.elements // self.lanes)

    @cached_property
    def limit(self) -> int:
        """Largest sum of squares that passes."""
        return int(upper(self.projections) * self.projections * self.bound**2 / 2)

    @property
    def slack(self) -> float:
        """Norm over bound from which on a vector passes with at most 2^-64, if its projections are normal."""
        return math.sqrt(upper(self.projections) / lower(self.projections))

    @property
    def proven_slack(self) -> float:
        """The same for one lane, whatever the vector is and however its pads are off.

        With a modulus m that divides a lane's, w^2 >= V = m^2 (1 - cos(2 pi w / m)) / (2 pi^2). Entries of A being 0, 1
        and -1, E cos(2 pi (<a, e> + c) / m) <= prod cos^2(pi e_i / m) <= exp(-pi^2 |e|^2 / m^2) for every c. V is at
        most m^2 / pi^2, so by convexity E exp(-u V pi^2 / m^2) <= 1 - (1 - exp(..)) (1 - exp(-u)) / 2, and Chernoff's
        bound follows. An element of m / 2 and more is as clear under a larger m, where its cos^2 is at most 1/2. Lanes
        above the lowest have carries in c that depend on A; they move a projection by a step or two.
        """
        ratio = (1 << (6 * self.bound).bit_length()) / self.bound
        need, expected = math.log(2) * SOUNDNESS_BITS / self.projections, upper(self.projections) / 2
        smallest = math.inf
        for u in np.arange(0.05, 12, 0.05).tolist():
            missing = 2 * (1 - math.exp(-need - u * expected * (math.pi / ratio) ** 2)) / (1 - math.exp(-u))
            if missing < 1:
                smallest = min(smallest, ratio / math.pi * math.sqrt(-math.log(1 - missing)))
        return smallest

    @property
    def squares(self) -> int:
        """Committed numbers of a segment whose squares count: lanes of all projections, and four more."""
        return -(-(self.projections * self.lanes + 4) // self.segments)

    @property
    def others(self) -> int:
        """Other committed numbers of a segment: a carry for each projection, and what hides the subset sums."""
        return -(-(self.projections + ROWS) // self.segments)

    @property
    def segments(self) -> int:
        return 1 << self.folds

    @property
    def numbers(self) -> int:
        return self.segments * (self.squares + self.others)

    def square_at(self, index: int) -> int:
        """Place of one of the squared numbers in the committed vector."""
        segment, rest = divmod(index, self.squares)
        return segment * (self.squares + self.others) + rest

    def other_at(self, index: int) -> int:
        """Place of one of the others."""
        segment, rest = divmod(index, self.others)
        return segment * (self.squares + self.others) + self.squares + rest

    @property
    def shortest(self) -> int:
        """What no subset of an honest vector's numbers sums up to."""
        return self.numbers * (math.isqrt(self.limit) + 1)

    @cached_property
    def hiding(self) -> int:
        """Subset sums are hidden by a uniform number below this."""
        hiding = 1 << self.shortest.bit_length() + HIDING_BITS
        if 8 * self.numbers * (hiding + self.shortest) ** 2 >= ORDER:
            raise ValueError("the bound is too large: squares would wrap")
        return hiding


def upper(projections: int) -> float:
    """X for which chi-squared exceeds x times its mean with a probability of at most 2^-64 (Chernoff)."""
    return _crossing(projections, COMPLETENESS_BITS, 1.0, 1e3)


def lower(projections: int) -> float:
    """X for which chi-squared is below x times its mean with a probability of at most 2^-64 (Chernoff)."""
    return _crossing(projections, SOUNDNESS_BITS, 1.0, 1e-12)


def _crossing(projections: int, bits: int, inner: float, outer: float) -> float:
    aim = 2 * bits * math.log(2) / projections
    for _ in range(200):
        middle = (inner + outer) / 2
        inner, outer = (middle, outer) if middle - 1 - math.log(middle) < aim else (inner, middle)
    return outer


def project(seed: bytes, projections: int, columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """A times `columns` ([words, m], each below 2^40 in magnitude), exact: [projections, m]. seed: 32 bytes."""
    total = np.zeros((projections, columns.shape[1]), np.int64)
    for block, start in enumerate(range(0, len(columns), _BLOCK_WORDS)):
        part = columns[start : start + _BLOCK_WORDS].astype(np.float64)
        total += (_matrix(seed, projections, block)[:, : len(part)] @ part).astype(np.int64)
    return total


def _matrix(seed: bytes, projections: int, block: int) -> NDArray[np.float64]:
    """Block of A, by ChaCha20 with the block's number as nonce: two bits an entry."""
    nonce = bytes(4) + block.to_bytes(12, "little")
    stream = Cipher(algorithms.ChaCha20(seed, nonce), mode=None).encryptor()
    drawn = np.frombuffer(stream.update(bytes(projections * _BLOCK_WORDS // _PER_BYTE)), np.uint8)
    return _DIGITS[drawn].reshape(projections, _BLOCK_WORDS)


def project_words(seed: bytes, projections: int, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A times a vector of words, modulo 2^64: [projections]."""
    limbs = words.view(np.uint32).reshape(-1, 2).astype(np.int64)
    low, high = project(seed, projections, limbs).astype(np.uint64).T
    projected: NDArray[np.uint64] = low + (high << np.uint64(32))
    return projected


def join(lanes: NDArray[np.int64], field_bits: int) -> NDArray[np.uint64]:
    """Words of steps [m, lanes], modulo 2^64."""
    shifts = np.arange(lanes.shape[1], dtype=np.uint64) * np.uint64(field_bits)
    joined: NDArray[np.uint64] = (lanes.astype(np.uint64) << shifts).sum(axis=1, dtype=np.uint64)
    return joined


def sum_holds(seed: bytes, words: NDArray[np.uint64], pads: NDArray[np.uint64], values: NDArray[np.uint64]) -> bool:
    """Whether the `values` t of all survivors [clients, k] are of what is in their sum: words, and pads [k]."""
    expected = project_words(seed, len(pads), words) + pads
    return bool(np.array_equal(expected, values.sum(axis=0, dtype=np.uint64)))
