"""Key pairs, agreement, sealing and signatures: thin, typed wrappers over `cryptography`.

Nothing here knows the protocol; what a key is for is decided in `schedule`. Secrets are held in `Secret`, whose repr
is redacted and which refuses to be pickled, so that they reach neither a log nor a disk by accident. CPython gives no
way to overwrite immutable bytes: to erase a secret is to drop every reference to it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedcore.errors import ProtocolViolation, UsageError
from fedcore.secagg.checks import Check

Randomness = Callable[[int], bytes]
"""Gives that many fresh, uniformly random bytes; `os.urandom` outside of tests."""

KEY_BYTES = 32
"""X25519 and Ed25519 keys, ChaCha20 keys and seeds (RFC 7748, 8032, 8439)."""
SIGNATURE_BYTES = 64
TAG_BYTES = 16

_CURVE_PRIME = 2**255 - 19
# The u-coordinates of all points whose order divides eight: 0 (order two), 1 and -1 (four), and two of order eight.
_LOW_ORDER = frozenset(
    {
        0,
        1,
        _CURVE_PRIME - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)
# RFC 8439 section 2.8 demands a nonce that is unique for its key. Every sealing key here is derived for exactly one
# sender, receiver, cohort and round, and seals exactly one text, so the nonce may be constant.
_SINGLE_USE_NONCE = bytes(12)


@dataclass(frozen=True, slots=True, eq=False)
class Secret:
    """Secret bytes; `reveal()` is the only way to them. Comparison takes constant time."""

    _value: bytes = field(repr=False)

    def reveal(self) -> bytes:
        """The bytes themselves; keep them in no longer-lived place than this object."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret(<{len(self._value)} bytes redacted>)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> NoReturn:
        raise TypeError("a Secret is not hashable: a hash would depend on it")

    def __reduce__(self) -> NoReturn:
        raise UsageError("a Secret is never pickled")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """An X25519 pair (RFC 7748): the public key is 32 raw bytes, the private one is redacted."""

    public: bytes
    private: Secret = field(repr=False)

    @classmethod
    def draw(cls, randomness: Randomness) -> KeyPair:
        """A fresh pair from 32 random bytes."""
        return cls.from_private(draw(randomness, KEY_BYTES))

    @classmethod
    def from_private(cls, raw: bytes) -> KeyPair:
        """The pair of a private key given as 32 raw bytes."""
        private = X25519PrivateKey.from_private_bytes(raw)
        return cls(public=private.public_key().public_bytes_raw(), private=Secret(raw))

    def agree(self, peer_public: bytes) -> Secret:
        """X25519 with a peer's public key, 32 bytes.

        Raises ProtocolViolation("low-order-point") where the result would be zero for any private key.
        """
        private = X25519PrivateKey.from_private_bytes(self.private.reveal())
        try:
            return Secret(private.exchange(X25519PublicKey.from_public_bytes(peer_public)))
        except ValueError:
            raise ProtocolViolation(
                Check.LOW_ORDER_POINT, "a public key of low order makes the agreed secret zero"
            ) from None


def draw(randomness: Randomness, size: int) -> bytes:
    """`size` bytes from the source; UsageError where the source gives another number of bytes."""
    raw = randomness(size)
    if not isinstance(raw, bytes) or len(raw) != size:
        raise UsageError(f"the source of randomness did not give the {size} bytes it was asked for")
    return raw


def is_low_order(public: bytes) -> bool:
    """Whether an X25519 public key (32 bytes) lies in the small subgroup of the curve or of its twist.

    The top bit is ignored and the rest reduced modulo 2^255 - 19, as RFC 7748 (section 5) decodes it, so that no
    other encoding of such a point gets through. `KeyPair.agree` refuses the zero result once more.
    """
    coordinate = int.from_bytes(public, "little") % 2**255 % _CURVE_PRIME
    return coordinate in _LOW_ORDER


def seal(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """ChaCha20-Poly1305 (RFC 8439) under a key that seals this one text; 16 bytes longer than the text."""
    return ChaCha20Poly1305(key).encrypt(_SINGLE_USE_NONCE, plaintext, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes | None:
    """The text that `seal` was given; None where key, text or associated data differ."""
    try:
        return ChaCha20Poly1305(key).decrypt(_SINGLE_USE_NONCE, sealed, associated)
    except InvalidTag:
        return None


def sign(identity: Ed25519PrivateKey, statement: bytes) -> bytes:
    """Ed25519 (RFC 8032), 64 bytes."""
    return identity.sign(statement)


def verifies(public: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether `signature` (64 bytes) over `statement` was made with the Ed25519 key `public` (32 bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except InvalidSignature:
        return False
    return True
