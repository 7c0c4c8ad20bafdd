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

from fedcore.errors import ConfigurationError
from fedcore.secagg.norm.group import ORDER, POINT_BYTES, SCALAR_BYTES

WORD_BITS = 64
WORD_BYTES = WORD_BITS // 8
ROWS = 128
"""Sums of random subsets that show all committed numbers to be short: one that is not passes each with 1/2 at most."""
SUM_BYTES = 16
HIDING_BITS = 64
COMPLETENESS_BITS = SOUNDNESS_BITS = 64
POINTS = SCALARS = 4
"""Of a proof, without its folds and its last message."""
FOLD_BYTES = 2 * POINT_BYTES + 4 * SCALAR_BYTES
_RATIO_STEPS = 1 << 20
LEAST_MARGIN = 16
"""Times that the bound goes into a field's range, at least."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Public values of one exchange.

    projections: k. field_bits: of a lane. bound: L2 norm of an honest vector, in steps; a 16th of 2^field_bits at most.
    folds: how often the last message is halved.
    """

    projections: int
    field_bits: int
    bound: int
    folds: int = 6

    @property
    def lanes(self) -> int:
        return WORD_BITS // self.field_bits

    @property
    def proof_bytes(self) -> int:
        """Length of every proof."""
        return (
            WORD_BYTES * self.projections
            + POINTS * POINT_BYTES
            + ROWS * SUM_BYTES
            + SCALARS * SCALAR_BYTES
            + self.folds * FOLD_BYTES
            + (self.squares + self.others) * SCALAR_BYTES
        )

    def check(self) -> None:
        """Raises ConfigurationError if the bound is too large, or no whole step."""
        if self.bound < 1:
            raise ConfigurationError("norm-proof: the bound is less than one step of the encoding; widen the fields")
        if LEAST_MARGIN * self.bound > 1 << self.field_bits:
            raise ConfigurationError(
                f"norm-proof: the bound is {self.bound} steps; fields of {self.field_bits} bits hold a proof of "
                f"{(1 << self.field_bits) // LEAST_MARGIN} at most"
            )
        if 8 * self.numbers * (self.hiding + self.shortest) ** 2 >= ORDER:
            raise ConfigurationError(f"norm-proof: the bound is {self.bound} steps, too large for the proof's group")

    @cached_property
    def limit(self) -> int:
        """Largest sum of squares that passes; the ratio is rounded, so that it is the same number on all machines."""
        ratio = math.ceil(upper(self.projections) * _RATIO_STEPS)
        return ratio * self.projections * self.bound**2 // (2 * _RATIO_STEPS)

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
        for u in (step / 20 for step in range(1, 240)):
            missing = 2 * (1 - math.exp(-need - u * expected * (math.pi / ratio) ** 2)) / (1 - math.exp(-u))
            if missing < 1:
                smallest = min(smallest, ratio / math.pi * math.sqrt(-math.log(1 - missing)))
        return smallest

    @cached_property
    def squares(self) -> int:
        """Committed numbers of a segment whose squares count: lanes of all projections, and four more."""
        return -(-(self.projections * self.lanes + 4) // self.segments)

    @cached_property
    def others(self) -> int:
        """Other committed numbers of a segment: a pad for each projection, and what hides the subset sums."""
        return -(-(self.projections + ROWS) // self.segments)

    @cached_property
    def segments(self) -> int:
        return 1 << self.folds

    @property
    def numbers(self) -> int:
        return self.segments * (self.squares + self.others)

    def position_of_square(self, index: int) -> int:
        """Place of one of the squared numbers in the committed vector."""
        segment, rest = divmod(index, self.squares)
        return segment * (self.squares + self.others) + rest

    def position_of_other(self, index: int) -> int:
        """Place of one of the others."""
        segment, rest = divmod(index, self.others)
        return segment * (self.squares + self.others) + self.squares + rest

    @property
    def shortest(self) -> int:
        """What no subset of an honest vector's numbers sums up to."""
        return self.numbers * (math.isqrt(self.limit) + 1)

    @property
    def hiding(self) -> int:
        """Subset sums are hidden by a uniform number below this, a power of two."""
        return 1 << self.shortest.bit_length() + HIDING_BITS


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
