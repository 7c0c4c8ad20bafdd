"""ML-KEM-768 (FIPS 203), which `docs/reference/specification.md` refers to in 3.1 and 3.4."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache

Q = 3329
ZETAS = [pow(17, int(f"{i:07b}"[::-1], 2), Q) for i in range(128)]
GAMMAS = [pow(17, 2 * int(f"{i:07b}"[::-1], 2) + 1, Q) for i in range(128)]
Poly = list[int]


def _encode(poly: Poly, bits: int) -> bytes:
    """ByteEncode, algorithm 5."""
    return sum(value << bits * i for i, value in enumerate(poly)).to_bytes(32 * bits, "little")


def _decode(data: bytes, bits: int) -> Poly:
    """ByteDecode, algorithm 6, without the reduction modulo q of 12 bits."""
    number = int.from_bytes(data, "little")
    return [number >> bits * i & (1 << bits) - 1 for i in range(256)]


def _compress(poly: Poly, bits: int) -> Poly:
    """Equation 4.7."""
    return [((value << bits) + Q // 2) // Q % (1 << bits) for value in poly]


def _decompress(poly: Poly, bits: int) -> Poly:
    """Equation 4.8."""
    return [(value * Q + (1 << bits - 1)) >> bits for value in poly]


def _ntt(poly: Poly) -> Poly:
    """Algorithm 9."""
    f, i, length = list(poly), 1, 128
    while length >= 2:
        for start in range(0, 256, 2 * length):
            for j in range(start, start + length):
                t = ZETAS[i] * f[j + length] % Q
                f[j], f[j + length] = (f[j] + t) % Q, (f[j] - t) % Q
            i += 1
        length //= 2
    return f


def _inverse_ntt(poly: Poly) -> Poly:
    """Algorithm 10."""
    f, i, length = list(poly), 127, 2
    while length <= 128:
        for start in range(0, 256, 2 * length):
            for j in range(start, start + length):
                f[j], f[j + length] = (f[j] + f[j + length]) % Q, ZETAS[i] * (f[j + length] - f[j]) % Q
            i -= 1
        length *= 2
    return [value * 3303 % Q for value in f]


def _dot(left: Sequence[Poly], right: Sequence[Poly]) -> Poly:
    """A sum of products of algorithm 11."""
    total = [0] * 256
    for f, g in zip(left, right, strict=True):
        for i in range(128):
            a, b, c, d = f[2 * i], f[2 * i + 1], g[2 * i], g[2 * i + 1]
            total[2 * i] += a * c + b * d * GAMMAS[i]
            total[2 * i + 1] += a * d + b * c
    return [value % Q for value in total]


def _plus(left: Poly, right: Poly) -> Poly:
    """A sum."""
    return [(a + b) % Q for a, b in zip(left, right, strict=True)]


@lru_cache(maxsize=256)
def _uniform(seed: bytes) -> Poly:
    """SampleNTT, algorithm 7; 1,344 bytes are more than it ever needs."""
    data, poly = hashlib.shake_128(seed).digest(1344), []
    for i in range(0, len(data), 3):
        low, high = data[i] + 256 * (data[i + 1] % 16), data[i + 1] // 16 + 16 * data[i + 2]
        poly += [value for value in (low, high) if value < Q]
    return poly[:256]


def _binomial(seed: bytes, nonce: int) -> Poly:
    """SamplePolyCBD of PRF, algorithm 8, with eta = 2."""
    bits = int.from_bytes(hashlib.shake_256(seed + bytes([nonce])).digest(128), "little")
    return [((bits >> 4 * i & 3).bit_count() - (bits >> 4 * i + 2 & 3).bit_count()) % Q for i in range(256)]


@lru_cache(maxsize=1024)
def keys(seeds: bytes) -> tuple[bytes, bytes]:
    """Encapsulation and decapsulation key (ek, dk) of d || z, algorithms 13 and 16."""
    d, z = seeds[:32], seeds[32:]
    both = hashlib.sha3_512(d + b"\3").digest()
    rho, sigma = both[:32], both[32:]
    s = [_ntt(_binomial(sigma, i)) for i in range(3)]
    e = [_ntt(_binomial(sigma, i + 3)) for i in range(3)]
    t = [_plus(_dot([_uniform(rho + bytes([j, i])) for j in range(3)], s), e[i]) for i in range(3)]
    public = b"".join(_encode(poly, 12) for poly in t) + rho
    return public, b"".join(_encode(poly, 12) for poly in s) + public + hashlib.sha3_256(public).digest() + z


def _encrypt(public: bytes, message: bytes, seed: bytes) -> bytes:
    """K-PKE.Encrypt, algorithm 14."""
    t, rho = [_decode(public[384 * i : 384 * i + 384], 12) for i in range(3)], public[1152:]
    y = [_ntt(_binomial(seed, i)) for i in range(3)]
    columns = [[_uniform(rho + bytes([i, j])) for j in range(3)] for i in range(3)]
    u = [_plus(_inverse_ntt(_dot(columns[i], y)), _binomial(seed, 3 + i)) for i in range(3)]
    v = _plus(_plus(_inverse_ntt(_dot(t, y)), _binomial(seed, 6)), _decompress(_decode(message, 1), 1))
    return b"".join(_encode(_compress(poly, 10), 10) for poly in u) + _encode(_compress(v, 4), 4)


def encapsulate(public: bytes) -> tuple[bytes, bytes]:
    """Ciphertext and secret, algorithms 17 and 20."""
    message = os.urandom(32)
    both = hashlib.sha3_512(message + hashlib.sha3_256(public).digest()).digest()
    return _encrypt(public, message, both[32:]), both[:32]


def decapsulate(private: bytes, ciphertext: bytes) -> bytes:
    """The secret of a ciphertext, algorithms 15 and 18."""
    s, public = [_decode(private[384 * i : 384 * i + 384], 12) for i in range(3)], private[1152:2336]
    u = [_ntt(_decompress(_decode(ciphertext[320 * i : 320 * i + 320], 10), 10)) for i in range(3)]
    v = _decompress(_decode(ciphertext[960:], 4), 4)
    noisy = [(a - b) % Q for a, b in zip(v, _inverse_ntt(_dot(s, u)), strict=True)]
    message = _encode(_compress(noisy, 1), 1)
    both = hashlib.sha3_512(message + private[2336:2368]).digest()
    if _encrypt(public, message, both[32:]) == ciphertext:
        return both[:32]
    return hashlib.shake_256(private[2368:] + ciphertext).digest(32)


def is_key(public: bytes) -> bool:
    """The modulus check of section 7.2."""
    return all(value < Q for i in range(0, 1152, 384) for value in _decode(public[i : i + 384], 12))
