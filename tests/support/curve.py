"""Points that libsodium refuses to make: those of small order, and sums with them, by the arithmetic of the vectors."""

from __future__ import annotations

from vectors.secagg_v3_spec import CURVE_D, CURVE_ORDER, CURVE_PRIME, Affine, added, encoded, lifted, times

IDENTITY: Affine = (0, 1)
BASE = lifted((9).to_bytes(32, "little"))
# Curve25519's u of order eight (fedcore refuses keys with it).
_EIGHT = lifted((325606250916557431795983626356110631294008115727848805560023387167927233504).to_bytes(32, "little"))
SMALL = [times(i, _EIGHT) for i in range(8)]
"""The eight points whose order divides eight; the identity first, and i at place i generates as i does modulo eight."""


def of_order(order: int) -> Affine:
    """A point of order 1, 2, 4 or 8."""
    return SMALL[8 // order % 8]


def to_u(point: Affine) -> bytes:
    """The u-coordinate (RFC 7748, section 4.1)."""
    u = (1 + point[1]) * pow(1 - point[1], CURVE_PRIME - 2, CURVE_PRIME) % CURVE_PRIME
    return u.to_bytes(32, "little")


def is_y_of_a_point(y: int) -> bool:
    """Whether the curve has a point with this y other than those of x = 0: by Euler's criterion for x squared."""
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, CURVE_PRIME) % CURVE_PRIME
    return pow(square, (CURVE_PRIME - 1) // 2, CURVE_PRIME) == 1


def negated(point: Affine) -> Affine:
    """The inverse."""
    return -point[0] % CURVE_PRIME, point[1]


__all__ = [
    "BASE", "CURVE_ORDER", "CURVE_PRIME", "IDENTITY", "SMALL",
    "Affine", "added", "encoded", "is_y_of_a_point", "lifted", "negated", "of_order", "times", "to_u",
]  # fmt: skip
