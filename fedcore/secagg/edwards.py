"""The curve of X25519 in its Edwards form, where points can be added: what proofs about an agreement need.

X25519 knows only u-coordinates (RFC 7748); a proof that an agreed secret is right adds points. Formulas, encoding and
base point are those of edwards25519 (RFC 8032, section 5.1), the map between the two forms is that of RFC 7748,
section 4.1. `lift` leaves open which of the two points over a u-coordinate is meant and takes the one of even x.

Python's integers do not take constant time. That is acceptable here: this runs only when a client leaves a round with a
complaint, on a machine where nobody else measures; the private key that it handles served for that one round, and the
proof's nonce is drawn afresh and used once.
"""

from __future__ import annotations

from typing import NamedTuple

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
"""Of the base point; the curve has eight times as many points."""
POINT_BYTES = 32

_D = -121665 * pow(121666, -1, PRIME) % PRIME
_ROOT_OF_MINUS_ONE = pow(2, (PRIME - 1) // 4, PRIME)


class Point(NamedTuple):
    """A point in extended coordinates: x = X / Z, y = Y / Z, x y = T / Z."""

    x: int
    y: int
    z: int
    t: int


IDENTITY = Point(0, 1, 1, 0)


def add(one: Point, two: Point) -> Point:
    """The sum of any two points, equal ones too (RFC 8032, section 5.1.4)."""
    a = (one.y - one.x) * (two.y - two.x) % PRIME
    b = (one.y + one.x) * (two.y + two.x) % PRIME
    c = 2 * one.t * two.t * _D % PRIME
    d = 2 * one.z * two.z % PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return Point(e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME)


def negate(point: Point) -> Point:
    """The inverse."""
    return Point(-point.x % PRIME, point.y, point.z, -point.t % PRIME)


def multiply(factor: int, point: Point) -> Point:
    """`factor` >= 0 times a point."""
    total = IDENTITY
    while factor:
        if factor & 1:
            total = add(total, point)
        point, factor = add(point, point), factor >> 1
    return total


def is_identity(point: Point) -> bool:
    """Whether adding the point changes nothing."""
    return point.x == 0 and point.y == point.z


def is_odd(point: Point) -> bool:
    """Whether x is odd, of the two points over one u-coordinate the one that `lift` does not take."""
    return bool(point.x * pow(point.z, -1, PRIME) % PRIME & 1)


def encode(point: Point) -> bytes:
    """32 bytes: y, and the lowest bit of x on top."""
    y = point.y * pow(point.z, -1, PRIME) % PRIME
    return (y | is_odd(point) << 255).to_bytes(POINT_BYTES, "little")


def decode(raw: bytes) -> Point | None:
    """The inverse of `encode`; None for what it never gives."""
    number = int.from_bytes(raw, "little")
    return _from_y(number % 2**255, odd=bool(number >> 255))


def lift(u: bytes) -> Point | None:
    """The point with an even x over an X25519 public key (32 bytes); None where it is one of the curve's twist."""
    coordinate = int.from_bytes(u, "little") % 2**255 % PRIME
    if coordinate == PRIME - 1:
        return None
    return _from_y((coordinate - 1) * pow(coordinate + 1, -1, PRIME) % PRIME, odd=False)


def to_u(point: Point) -> bytes:
    """The u-coordinate as X25519 gives it, 32 bytes; zero for the identity."""
    u = (point.z + point.y) * pow(point.z - point.y, PRIME - 2, PRIME) % PRIME
    return u.to_bytes(POINT_BYTES, "little")


def _from_y(y: int, *, odd: bool) -> Point | None:
    """The point of this y and sign of x; after RFC 8032, section 5.1.3."""
    if y >= PRIME:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * _ROOT_OF_MINUS_ONE % PRIME
    if (x * x - square) % PRIME or (odd and x == 0):
        return None
    x = -x % PRIME if x & 1 != odd else x
    return Point(x, y, 1, x * y % PRIME)


_BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_BASE_Y = 4 * pow(5, -1, PRIME) % PRIME
BASE = Point(_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % PRIME)
"""The generator, of order `ORDER`: X25519's u = 9."""
