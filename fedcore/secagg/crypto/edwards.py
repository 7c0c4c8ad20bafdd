"""Points of X25519's curve in its Edwards form, by libsodium: what proofs about an agreement need.

X25519 knows only u-coordinates (RFC 7748); a proof that an agreed secret is right adds points. A point here is the
32 bytes of RFC 8032, section 5.1.2, a scalar 32 bytes in little-endian order. libsodium does all arithmetic with both,
in constant time. It multiplies only points in the subgroup of the base point, and never gives the identity.

What libsodium lacks is the way from a u-coordinate to a point (RFC 7748, section 4.1): one division in the field, of a
public key. `lift` leaves open which of the two points over a u-coordinate is meant and takes the one of even x.
"""

from __future__ import annotations

from nacl import bindings
from nacl.exceptions import RuntimeError as NotOnCurve

POINT_BYTES = 32
SCALAR_BYTES = 32
IDENTITY = (1).to_bytes(POINT_BYTES, "little")
BASE = bindings.crypto_scalarmult_ed25519_base_noclamp((1).to_bytes(SCALAR_BYTES, "little"))
"""The generator of the subgroup of prime order: X25519's u = 9."""

_PRIME = 2**255 - 19
_WIDE_BYTES = 64
_EIGHTH = bindings.crypto_core_ed25519_scalar_invert((8).to_bytes(SCALAR_BYTES, "little"))


def lift(u: bytes) -> bytes | None:
    """The point with an even x over an X25519 public key (32 bytes); None if it is one of the curve's twist."""
    coordinate = int.from_bytes(u, "little") % 2**255 % _PRIME
    if coordinate == _PRIME - 1:
        return None
    y = (coordinate - 1) * pow(coordinate + 1, -1, _PRIME) % _PRIME
    point = y.to_bytes(POINT_BYTES, "little")
    try:
        bindings.crypto_core_ed25519_add(point, IDENTITY)
    except NotOnCurve:
        return None
    return point


def to_u(point: bytes) -> bytes:
    """The u-coordinate of a point of the subgroup as X25519 gives it, 32 bytes; zero for the identity."""
    return bytes(POINT_BYTES) if point == IDENTITY else bindings.crypto_sign_ed25519_pk_to_curve25519(point)


def is_in_subgroup(point: bytes) -> bool:
    """Whether any 32 bytes are the one encoding of a multiple of the base point."""
    return point == IDENTITY or bindings.crypto_core_ed25519_is_valid_point(point)


def subtract(one: bytes, two: bytes) -> bytes:
    """The difference of two points."""
    return bindings.crypto_core_ed25519_sub(one, two)


def clear_cofactor(point: bytes) -> bytes:
    """Eight times any point of the curve, which lies in the subgroup."""
    for _ in range(3):
        point = bindings.crypto_core_ed25519_add(point, point)
    return point


def multiply(scalar: bytes, point: bytes) -> bytes:
    """The multiple of a point of the subgroup by a scalar that `reduce` or an operation on scalars gave."""
    if point == IDENTITY or bindings.sodium_memcmp(scalar, bytes(SCALAR_BYTES)):
        return IDENTITY
    return bindings.crypto_scalarmult_ed25519_noclamp(scalar, point)


def agree(scalar: bytes, point: bytes) -> bytes:
    """The multiple of any point by a multiple of eight, as X25519's keys are, given modulo the subgroup's order."""
    return multiply(bindings.crypto_core_ed25519_scalar_mul(scalar, _EIGHTH), clear_cofactor(point))


def scalar_and_point(private: bytes) -> tuple[bytes, bytes]:
    """An X25519 private key as a scalar (RFC 7748, section 5), and the point that is this multiple of the base."""
    clamped = bytes([private[0] & 248, *private[1:31], private[31] & 127 | 64])
    return reduce(clamped), bindings.crypto_scalarmult_ed25519_base(private)


def scalar_of(private: bytes) -> bytes:
    """The scalar whose multiple of the base is what `lift` takes of the private key's public half."""
    scalar, point = scalar_and_point(private)
    return negate_scalar(scalar) if is_odd(point) else scalar


def is_odd(point: bytes) -> bool:
    """Whether x is odd, of the two points over one u-coordinate the one that `lift` does not take."""
    return bool(point[-1] >> 7)


def reduce(number: bytes) -> bytes:
    """A number of up to 64 bytes as a scalar: modulo the order of the subgroup."""
    return bindings.crypto_core_ed25519_scalar_reduce(number.ljust(_WIDE_BYTES, b"\0"))


def negate_scalar(scalar: bytes) -> bytes:
    """The scalar whose sum with this one is zero."""
    return bindings.crypto_core_ed25519_scalar_negate(scalar)


def multiply_add(one: bytes, two: bytes, three: bytes) -> bytes:
    """One times two, plus three, of scalars."""
    return bindings.crypto_core_ed25519_scalar_add(bindings.crypto_core_ed25519_scalar_mul(one, two), three)
