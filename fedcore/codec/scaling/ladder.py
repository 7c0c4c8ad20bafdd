"""The largest of the clients' magnitudes, from a sum that tells nothing else of them.

Words add modulo 2^64. The multiples of 2^58, 2^52, 2^46, ... are subgroups, each within the next, and of several words
likewise. A client whose magnitude is on rung k of a ladder writes an element that is uniform in the k-th of them. A sum
of such elements is uniform in the largest of their subgroups: so it tells the highest rung that any client is on, and
neither whose it is, nor how many are on it, nor anything about the others.

By chance, once in 64 sums, the sum lies in the subgroup below, and reads as one rung too low. The next exchange then
has half the room, and more than enough as a rule; if not it is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fedcore.codec.scaling.widths import WIDE_BITS

_WORD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Rungs for magnitudes over a scale. Rung 0 is for those up to `silent`.

    tops
        The largest binary exponent on each rung from the first on, ascending; infinite for the last one.
    rung_bits
        Bits for each rung.
    """

    tops: tuple[float, ...]
    rung_bits: int
    silent: float

    @property
    def words(self) -> int:
        """64-bit words that an element takes."""
        return -(-len(self.tops) * self.rung_bits // _WORD)

    @property
    def fitting(self) -> int:
        """The highest rung for magnitudes that do not exceed the scale."""
        return sum(top <= 0 for top in self.tops)

    def rung_of(self, ratio: float) -> int:
        """The rung for a magnitude, in units of the scale."""
        if ratio <= self.silent:
            return 0
        return next(rung for rung, top in enumerate(self.tops, start=1) if ratio <= 2.0**top)

    def top_of(self, rung: int) -> float:
        """The largest magnitude on a rung, in units of the scale; of the last rung that on the one below."""
        if not rung:
            return self.silent
        finite = [int(top) for top in self.tops[:rung] if top < math.inf]
        return math.ldexp(1.0, finite[-1]) if finite else math.inf

    def element(self, rung: int, randomness: Callable[[int], bytes]) -> list[int]:
        """One client's words: uniform in the subgroup of the rung. `randomness(k)` returns k secret random bytes."""
        drawn = randomness(8 * self.words)
        words = [int.from_bytes(drawn[start : start + 8], "little") for start in range(0, len(drawn), 8)]
        free = rung * self.rung_bits
        zeros = [min(max(_WORD * (position + 1) - free, 0), _WORD) for position in range(self.words)]
        return [word >> zero << zero for word, zero in zip(words, zeros, strict=True)]

    def read(self, words: Sequence[int]) -> int:
        """The rung of the smallest subgroup that a sum lies in."""
        for position in reversed(range(self.words)):
            if word := words[position]:
                bits = _WORD * (position + 1) - ((word & -word).bit_length() - 1)
                return -(-bits // self.rung_bits)
        return 0


SMALL_LADDER: Final = Ladder(tops=(math.inf,), rung_bits=_WORD, silent=1.0)
"""For small tensors, whose scale follows from their mean: whether any element exceeds it."""

NARROW_LADDER: Final = Ladder(tops=(-14, -12, *range(-10, 1), 1, 2, 3, 4, 6, 9, 14, math.inf), rung_bits=6, silent=0.0)
"""For large tensors. No scale falls by more than half an exchange, so what is far below it does not matter."""

WIDE_LADDER: Final = Ladder(
    tops=(-60, -55, -50, -46, -43, -40, -38, *range(-36, 1), 1, 4, 9, math.inf), rung_bits=8, silent=0.0
)
"""For large tensors in fields of 32 bits and more: in a first exchange nothing is known of magnitudes."""


def ladder_of(*, small: bool, field_bits: int) -> Ladder:
    """The ladder for a scale: of the small tensors, or of a large one in fields of this width."""
    if small:
        return SMALL_LADDER
    return WIDE_LADDER if field_bits >= WIDE_BITS else NARROW_LADDER
