"""Secrets, sealing and signatures: thin, typed wrappers over `cryptography`.

Nothing here knows the protocol; what a key is for is decided in `schedule`. Secrets are held in `Secret`, whose repr
is redacted and which refuses to be pickled, so that they reach neither a log nor a disk by accident. CPython gives no
way to overwrite immutable bytes: to erase a secret is to drop every reference to it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedcore.errors import UsageError

Randomness = Callable[[int], bytes]
"""Gives that many fresh, uniformly random bytes; `os.urandom` outside of tests."""

Verify = Callable[[bytes, bytes, bytes], bool]
"""`verifies`, or a memory of it: public key, signature, statement -> whether it is valid."""

KEY_BYTES = 32
"""X25519 and Ed25519 keys, ChaCha20 keys and seeds (RFC 7748, 8032, 8439)."""
SIGNATURE_BYTES = 64
TAG_BYTES = 16

# RFC 8439 section 2.8 demands a nonce that is unique for its key. Every sealing key here is derived for exactly one
# sender, receiver, cohort and round, and seals exactly one text, so the nonce may be constant.
_SINGLE_USE_NONCE = bytes(12)


class Signer(Protocol):
    """An Ed25519 identity key, wherever it is kept: all that anybody here asks of it.

    `Ed25519PrivateKey` of `cryptography` is one. Another may ask a token to sign (PKCS #11), and never show the key.
    """

    def sign(self, data: bytes, /) -> bytes:
        """The Ed25519 signature (RFC 8032) over `data`, 64 bytes."""
        ...

    def public_key(self) -> Ed25519PublicKey:
        """The public key that verifies it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Secret:
    """Secret bytes; `reveal()` is the only way to them. Comparison takes constant time."""

    _value: bytes

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


def draw(randomness: Randomness, size: int) -> bytes:
    """`size` bytes from the source; UsageError if the source gives another number of bytes."""
    raw = randomness(size)
    if not isinstance(raw, bytes) or len(raw) != size:
        raise UsageError(f"the source of randomness did not give the {size} bytes it was asked for")
    return raw


def seal(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """ChaCha20-Poly1305 (RFC 8439) under a key that seals this one text; 16 bytes longer than the text."""
    return ChaCha20Poly1305(key).encrypt(_SINGLE_USE_NONCE, plaintext, associated)


def unseal(key: bytes, sealed: bytes, associated: bytes) -> bytes | None:
    """The text that `seal` was given; None if key, text or associated data differ."""
    try:
        return ChaCha20Poly1305(key).decrypt(_SINGLE_USE_NONCE, sealed, associated)
    except InvalidTag:
        return None


def sign(identity: Signer, statement: bytes) -> bytes:
    """Ed25519 (RFC 8032), 64 bytes."""
    return identity.sign(statement)


def verifies(public: bytes, signature: bytes, statement: bytes) -> bool:
    """Whether `signature` (64 bytes) over `statement` was made with the Ed25519 key `public` (32 bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except InvalidSignature:
        return False
    return True
