"""Polynomials over GF(p): evaluation, interpolation, and Reed-Solomon decoding.

A polynomial is its list of coefficients from the constant term up, without zeros at the end; zero is the empty list.
Points are distinct and not zero modulo p. Costs are counted in multiplications for m points.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

PRIME = 2**256 + 297
"""The smallest prime above 2^256."""


def evaluate(coefficients: Sequence[int], point: int) -> int:
    """The value at `point`, by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def weights_at_zero(points: Sequence[int]) -> tuple[int, ...]:
    """Lagrange's coefficients l with f(0) = sum l_i f(x_i) for every f of degree < m; O(m^2)."""
    weights: list[int] = []
    for i, own in enumerate(points):
        above, below = 1, 1
        for j, other in enumerate(points):
            if i != j:
                above = above * other % PRIME
                below = below * (other - own) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


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


def interpolate(points: Sequence[int], values: Sequence[int]) -> list[int]:
    """The one polynomial of degree < m through (point, value), after Lagrange; O(m^2) and m inversions."""
    locator = locate(points)
    result = [0] * len(points)
    for point, value in zip(points, values, strict=True):
        basis = _without_root(locator, point)
        scale = value * pow(evaluate(basis, point), -1, PRIME) % PRIME
        for i, coefficient in enumerate(basis):
            result[i] = (result[i] + scale * coefficient) % PRIME
    return _trimmed(result)


def locate(points: Sequence[int]) -> list[int]:
    """The product of (x - point)."""
    result = [1]
    for point in points:
        raised = [0, *result]
        for i, coefficient in enumerate(result):
            raised[i] = (raised[i] - point * coefficient) % PRIME
        result = raised
    return result


def decode(points: Sequence[int], values: Sequence[int], dimension: int) -> list[int] | None:
    """The polynomial of degree < `dimension` that misses at most (m - dimension) / 2 of the values; else None.

    Gao 2003: run Euclid's algorithm on the locator of all points and the interpolation of all values, and stop half
    way; the remainder divided by its cofactor is the answer where the division leaves nothing. O(m^2).
    """
    before, now = locate(points), interpolate(points, values)
    factor_before: list[int] = []
    factor: list[int] = [1]
    while 2 * (len(now) - 1) >= len(points) + dimension:
        quotient, remainder = _divide(before, now)
        before, now = now, remainder
        factor_before, factor = factor, _subtract_product(factor_before, quotient, factor)
    result, remainder = _divide(now, factor)
    return result if not remainder and len(result) <= dimension else None


def _trimmed(coefficients: list[int]) -> list[int]:
    while coefficients and not coefficients[-1]:
        coefficients.pop()
    return coefficients


def _without_root(coefficients: Sequence[int], root: int) -> list[int]:
    """Divide by (x - root), which leaves nothing."""
    result = [0] * (len(coefficients) - 1)
    carry = 0
    for i in range(len(result) - 1, -1, -1):
        carry = (coefficients[i + 1] + root * carry) % PRIME
        result[i] = carry
    return result


def _divide(above: Sequence[int], below: Sequence[int]) -> tuple[list[int], list[int]]:
    """Quotient and remainder; `below` is not zero."""
    remainder = list(above)
    # Nothing where the divisor is the longer one: a list repeated less than no times is empty.
    quotient = [0] * (len(above) - len(below) + 1)
    inverse = pow(below[-1], -1, PRIME)
    for shift in range(len(quotient) - 1, -1, -1):
        coefficient = remainder[shift + len(below) - 1] * inverse % PRIME
        quotient[shift] = coefficient
        for i, value in enumerate(below):
            remainder[shift + i] = (remainder[shift + i] - coefficient * value) % PRIME
    return _trimmed(quotient), _trimmed(remainder)


def _subtract_product(left: Sequence[int], one: Sequence[int], two: Sequence[int]) -> list[int]:
    """Compute left - one * two, of which the product is no shorter."""
    result = [0] * (len(one) + len(two) - 1)
    result[: len(left)] = left
    for i, first in enumerate(one):
        for j, second in enumerate(two):
            result[i + j] = (result[i + j] - first * second) % PRIME
    return _trimmed(result)
