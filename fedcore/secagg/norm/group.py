"""Points and scalars of edwards25519's subgroup of prime order, and Fiat-Shamir challenges.

A scalar is a Python number modulo `ORDER`, a point its 32 bytes (RFC 8032). libsodium refuses to multiply what is no
point of the subgroup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from nacl import bindings

from fedcore.secagg.crypto import edwards
from fedcore.secagg.crypto.domain import Field, Usage, statement, tagged_hash
from fedcore.secagg.crypto.keys import Randomness, draw

ORDER = 2**252 + 27742317777372353535851937790883648493
SCALAR_BYTES, POINT_BYTES = edwards.SCALAR_BYTES, edwards.POINT_BYTES
_SPARE_BYTES = 16
"""What is drawn in excess before a number is reduced: no remainder is likelier than another by more than 2^-128."""


def below(limit: int, randomness: Randomness) -> int:
    """A uniform number in [0, limit)."""
    size = (limit.bit_length() + 7) // 8 + _SPARE_BYTES
    return int.from_bytes(draw(randomness, size), "little") % limit


def scalar(randomness: Randomness) -> int:
    """A uniform scalar."""
    return below(ORDER, randomness)


def scalar_bytes(number: int) -> bytes:
    """A scalar as it travels: 32 bytes, little-endian."""
    return number.to_bytes(SCALAR_BYTES, "little")


def times(number: int, point: bytes) -> bytes:
    """The multiple of a point; raises `nacl.exceptions.RuntimeError` for what is no point of the subgroup."""
    return edwards.multiply(scalar_bytes(number % ORDER), point)


def add(one: bytes, two: bytes) -> bytes:
    """The sum of two points."""
    return bindings.crypto_core_ed25519_add(one, two)


def combine(terms: Iterable[tuple[int, bytes]]) -> bytes:
    """The sum of multiples of points."""
    total = edwards.IDENTITY
    for number, point in terms:
        total = add(total, times(number, point))
    return total


@lru_cache(maxsize=16)
def generators(name: str, count: int) -> tuple[bytes, ...]:
    """Points with no known relation: each is the image of a hash."""
    return tuple(
        bindings.crypto_core_ed25519_from_uniform(tagged_hash(Usage.NORM_GENERATOR, name, i)) for i in range(count)
    )


class ProofTranscript:
    """What prover and verifier have said so far; a challenge depends on all of it."""

    def __init__(self, *fields: Field) -> None:
        self._state = hashlib.sha512(statement(Usage.NORM_PROOF, *fields)).digest()

    def absorb(self, label: str, content: bytes) -> None:
        """Take in a message of the prover."""
        self._state = hashlib.sha512(statement(Usage.NORM_PROOF, self._state, label, content)).digest()

    def challenge(self, label: str) -> int:
        """A scalar, not zero but for a chance of 2^-252."""
        self.absorb(label, b"challenge")
        return int.from_bytes(self._state, "little") % ORDER

    def stream(self, label: str, size: int) -> bytes:
        """Bytes that the messages so far determine."""
        self.absorb(label, b"stream")
        return hashlib.shake_256(self._state).digest(size)
