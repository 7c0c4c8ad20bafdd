"""What `docs/reference/specification.md` takes from RFCs: their functions, from PyNaCl as far as it has them."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable

from nacl import bindings
from nacl.exceptions import CryptoError

CURVE_PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
LOW_ORDER = {
    0,
    1,
    CURVE_PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
}
X25519_BASE = b"\x09" + bytes(31)
NEUTRAL = b"\1" + bytes(31)
BASE = bindings.crypto_scalarmult_ed25519_base_noclamp(NEUTRAL)


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256; 32 bytes are what it expands to in its first step."""
    return hmac.digest(hmac.digest(salt or bytes(32), secret, "sha256"), info + b"\1", "sha256")


def public_identity(seed: bytes) -> bytes:
    """The public key of an Ed25519 private key, RFC 8032."""
    return bindings.crypto_sign_seed_keypair(seed)[0]


def sign(seed: bytes, message: bytes) -> bytes:
    """Ed25519, RFC 8032."""
    return bindings.crypto_sign(message, bindings.crypto_sign_seed_keypair(seed)[1])[:64]


def verifies(public: bytes, message: bytes, signature: bytes) -> bool:
    """Ed25519, RFC 8032."""
    try:
        bindings.crypto_sign_open(signature + message, public)
    except CryptoError:
        return False
    return True


def seal(key: bytes, text: bytes, ad: bytes) -> bytes:
    """ChaCha20-Poly1305 with a nonce of zeros, RFC 8439."""
    return bindings.crypto_aead_chacha20poly1305_ietf_encrypt(text, ad, bytes(12), key)


def unseal(key: bytes, sealed: bytes, ad: bytes) -> bytes | None:
    """The text of what `seal` gave, or None."""
    try:
        return bindings.crypto_aead_chacha20poly1305_ietf_decrypt(sealed, ad, bytes(12), key)
    except CryptoError:
        return None


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3."""
    start = struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce)
    x = list(start)
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in (columns + diagonals) * 10:
        for p, q, r, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[p] = (x[p] + x[q]) & 0xFFFFFFFF
            mixed = x[r] ^ x[p]
            x[r] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF
    return struct.pack("<16I", *((i + j) & 0xFFFFFFFF for i, j in zip(x, start, strict=True)))


def x25519(private: bytes, peer: bytes) -> bytes:
    """RFC 7748, section 5."""
    return bindings.crypto_scalarmult(private, peer)


def coordinate(public: bytes) -> int:
    """The u-coordinate that a public key begins with, RFC 7748, section 5."""
    return int.from_bytes(public[:32], "little") % 2**255 % CURVE_PRIME


def is_low_order(public: bytes) -> bool:
    """Whether a public key begins with a coordinate whose points have an order that divides 8."""
    return coordinate(public) in LOW_ORDER


def eightfold(point: bytes) -> bytes:
    """8 times a point of edwards25519, encoded as in RFC 8032."""
    for _ in range(3):
        point = bindings.crypto_core_ed25519_add(point, point)
    return point


BASE_8 = eightfold(BASE)


def lift_8(public: bytes) -> bytes | None:
    """8 times the point with even x over a u-coordinate (RFC 7748, section 4.1), None if there is none."""
    u = coordinate(public)
    point = ((u - 1) * pow(u + 1, -1, CURVE_PRIME) % CURVE_PRIME).to_bytes(32, "little")
    try:
        return eightfold(point)
    except RuntimeError:  # not of the curve
        return None


def multiple(number: int, point: bytes) -> bytes:
    """A multiple of a multiple of B."""
    number %= ORDER
    return bindings.crypto_scalarmult_ed25519_noclamp(number.to_bytes(32, "little"), point) if number else NEUTRAL


def is_multiple(point: bytes) -> bool:
    """Whether bytes encode a multiple of B that is not neutral."""
    return bindings.crypto_core_ed25519_is_valid_point(point)


def montgomery(point: bytes) -> bytes:
    """The u-coordinate of a multiple of B that is not neutral, RFC 7748, section 4.1."""
    return bindings.crypto_sign_ed25519_pk_to_curve25519(point)


def factor(private: bytes) -> int:
    """The multiple of B that the point with even x over a public key is, from its clamped private key."""
    a = int.from_bytes(private, "little") & 2**255 - 8 | 2**254
    return -a if multiple(a, BASE)[31] >> 7 else a


def prove(k: int, e: bytes, private: bytes) -> bytes:
    """A proof of Schnorr's (as in RFC 8235, but for the sign) of a hash e, with which the nonce k went."""
    return e + ((k + int.from_bytes(e, "little") * factor(private)) % ORDER).to_bytes(32, "little")


def holds(proof: bytes, hashed: Callable[..., bytes], *sides: tuple[bytes, bytes]) -> bool:
    """Whether a proof is right; `hashed` gives e for the nonce's multiples, `sides` are each base and its multiple."""
    e, s = (int.from_bytes(part, "little") for part in (proof[:32], proof[32:]))
    nonces = [bindings.crypto_core_ed25519_sub(multiple(s, base), multiple(e, result)) for base, result in sides]
    return s < ORDER and hashed(*nonces) == proof[:32]
