"""Points and scalars of edwards25519's subgroup of prime order, and Fiat-Shamir challenges.

A scalar is a Python number modulo `ORDER`, a point its 32 bytes (RFC 8032). libsodium refuses to multiply what is no
point of the subgroup.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from functools import lru_cache

from nacl import bindings

from fedcore.secagg.crypto import edwards

ORDER = 2**252 + 27742317777372353535851937790883648493
SCALAR_BYTES = POINT_BYTES = 32
_TAG = b"fedcore/norm-proof/v1/"


def scalar() -> int:
    """A uniform scalar."""
    return secrets.randbelow(ORDER)


def times(number: int, point: bytes) -> bytes:
    """The multiple of a point; raises `nacl.exceptions.RuntimeError` for what is no point of the subgroup."""
    return edwards.multiply((number % ORDER).to_bytes(SCALAR_BYTES, "little"), point)


def combine(terms: Iterable[tuple[int, bytes]]) -> bytes:
    """The sum of multiples of points."""
    total = edwards.IDENTITY
    for number, point in terms:
        total = bindings.crypto_core_ed25519_add(total, times(number, point))
    return total


@lru_cache(maxsize=16)
def generators(usage: str, count: int) -> tuple[bytes, ...]:
    """Points with no known relation: each is the image of a hash."""
    return tuple(
        bindings.crypto_core_ed25519_from_uniform(hashlib.sha256(_TAG + f"{usage}/{i}".encode()).digest())
        for i in range(count)
    )


class Transcript:
    """What prover and verifier have said so far; a challenge depends on all of it."""

    def __init__(self, context: bytes) -> None:
        self._state = hashlib.sha512(_TAG + context).digest()

    def absorb(self, label: str, content: bytes) -> None:
        """Take in a message of the prover."""
        name = label.encode()
        head = len(name).to_bytes(8, "big") + name + len(content).to_bytes(8, "big")
        self._state = hashlib.sha512(self._state + head + content).digest()

    def challenge(self, label: str) -> int:
        """A scalar, not zero but for a chance of 2^-252."""
        self.absorb(label, b"challenge")
        return int.from_bytes(self._state, "little") % ORDER

    def stream(self, label: str, size: int) -> bytes:
        """Bytes that the messages so far determine."""
        self.absorb(label, b"stream")
        return hashlib.shake_256(self._state).digest(size)
