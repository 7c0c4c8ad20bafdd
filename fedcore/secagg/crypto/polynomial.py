"""Polynomials over GF(p): evaluation, and interpolation at zero from values at small points.

A polynomial is its list of coefficients from the constant term up.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

PRIME = 2**256 + 297
"""The smallest prime above 2^256."""


def evaluate(coefficients: Sequence[int], m: int) -> list[int]:
    """The values at the points 1 to m, by Horner's rule.

    The points are small, so the remainder is taken once in a few steps: between them a value grows by the bits of m
    with each. Dividing is most of what a step costs.
    """
    backwards = coefficients[::-1]
    runs = [backwards[start : start + _STEPS] for start in range(0, len(backwards), _STEPS)]
    values = []
    for point in range(1, m + 1):
        value = 0
        for run in runs:
            for coefficient in run:
                value = value * point + coefficient
            value %= PRIME
        values.append(value)
    return values


_STEPS = 64
"""Steps of Horner's rule between two remainders."""


class SmallPoints:
    """Coefficients for subsets of the points 1 to m, of which few are missing.

    The product of x - x_j over all m points but x is (-1)^(m - x) (x - 1)! (m - x)!, so only the points that are
    missing cost anything: O(len(points) * missing) small products for each subset.
    """

    def __init__(self, m: int) -> None:
        self._all = range(1, m + 1)
        factorials = [1]
        for x in self._all:
            factorials.append(factorials[-1] * x % PRIME)
        self._inverse = {x: pow(x, -1, PRIME) for x in self._all}
        self._full = {x: pow(factorials[x - 1] * factorials[m - x] * (-1) ** (m - x), -1, PRIME) for x in self._all}
        self._powers: dict[int, dict[int, int]] = {}

    def scales(self, points: Sequence[int]) -> tuple[int, ...]:
        """1 / prod (x_i - x_j) over the other points j, for each point i."""
        missing = sorted(set(self._all) - set(points))
        return tuple([self._full[x] * prod([x - y for y in missing]) % PRIME for x in points])

    def weights_at_zero(self, points: Sequence[int], scales: Sequence[int]) -> tuple[int, ...]:
        """Lagrange's coefficients l with f(0) = sum l_i f(x_i) for every f of degree < len(points)."""
        above = -prod(-x for x in points) % PRIME
        return tuple(above * self._inverse[x] * scale % PRIME for x, scale in zip(points, scales, strict=True))

    def dual_word(
        self, points: Sequence[int], scales: Sequence[int], dimension: int, challenge: int
    ) -> tuple[int, ...]:
        """The word (x_i - challenge)^(len(points) - dimension - 1) * scale_i.

        It is orthogonal to the values of every polynomial of degree < `dimension`. Values that lie on no such
        polynomial have a syndrome that is not zero, whose product with this word is a polynomial in the challenge of
        degree < len(points) that is not zero: at most that many challenges miss it. With as many points as the
        dimension there is nothing to check, and the word is zero.
        """
        power = len(points) - dimension - 1
        if power < 0:
            return (0,) * len(points)
        if power not in self._powers:
            self._powers[power] = {x: pow(x - challenge, power, PRIME) for x in self._all}
        powers = self._powers[power]
        return tuple(powers[x] * scale % PRIME for x, scale in zip(points, scales, strict=True))
