"""The parts of the secure sum, from `docs/reference/specification.md` alone: sections 1 to 5, and the curve."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import comb

from nacl import bindings
from nacl.exceptions import CryptoError

MOST = 2**63 - 1
SHARE_PRIME = 2**256 + 297
FIELD_PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE_D = -121665 * pow(121666, -1, FIELD_PRIME) % FIELD_PRIME
ROOT_OF_MINUS_ONE = pow(2, (FIELD_PRIME - 1) // 4, FIELD_PRIME)
LOW_ORDER = {
    0,
    1,
    FIELD_PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
}
HYBRID = "x25519-mlkem768"
CHUNK = 2**26

Field = bytes | str | int
Point = tuple[int, int]


class Refusal(Exception):
    """A message that the document refuses, with the name of the check, and who sealed what cannot be used."""

    def __init__(self, check: str, dealer: int | None = None, part: str = "") -> None:
        """Keep what failed, and about whose part."""
        super().__init__(check)
        self.check, self.dealer, self.part = check, dealer, part


def require(condition: object, check: str) -> None:
    """Refuse unless the condition holds."""
    if not condition:
        raise Refusal(check)


def u64(number: int) -> bytes:
    """1.2."""
    return number.to_bytes(8, "big")


def statement(usage: str, *fields: Field) -> bytes:
    """1.4."""
    tag = b"fedcore/secagg/v3" if usage == "ctx" else b"fedcore/secagg/v3/" + usage.encode()
    parts = [tag]
    for value in fields:
        if isinstance(value, int):
            require(0 <= value <= MOST, "malformed")
            parts.append(u64(value))
        else:
            parts.append(value.encode() if isinstance(value, str) else value)
    return b"".join(u64(len(part)) + part for part in parts)


def digest(usage: str, *fields: Field) -> bytes:
    """H of 1.5."""
    return hashlib.sha256(statement(usage, *fields)).digest()


def kdf(secret: bytes, salt: bytes, usage: str, *fields: Field) -> bytes:
    """1.6."""
    extract = hmac.digest(salt or bytes(32), secret, "sha256")
    return hmac.digest(extract, statement(usage, *fields) + b"\1", "sha256")


def join_ids(ids: Iterable[int]) -> bytes:
    """1.7."""
    return b"".join(map(u64, sorted(ids)))


def join_map(values: Mapping[int, bytes]) -> bytes:
    """1.8."""
    return b"".join(u64(key) + u64(len(values[key])) + values[key] for key in sorted(values))


def public_identity(seed: bytes) -> bytes:
    """The public key of an Ed25519 private key."""
    return bindings.crypto_sign_seed_keypair(seed)[0]


def sign(seed: bytes, message: bytes) -> bytes:
    """1.9."""
    return bindings.crypto_sign(message, bindings.crypto_sign_seed_keypair(seed)[1])[:64]


def verifies(public: bytes, message: bytes, signature: bytes) -> bool:
    """1.9."""
    try:
        bindings.crypto_sign_open(signature + message, public)
    except CryptoError:
        return False
    return True


def seal(key: bytes, text: bytes, ad: bytes) -> bytes:
    """1.10."""
    return bindings.crypto_aead_chacha20poly1305_ietf_encrypt(text, ad, bytes(12), key)


def unseal(key: bytes, ciphertext: bytes, ad: bytes) -> bytes | None:
    """The text of 1.10, or None."""
    try:
        return bindings.crypto_aead_chacha20poly1305_ietf_decrypt(ciphertext, ad, bytes(12), key)
    except CryptoError:
        return None


def chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """One block of RFC 8439, section 2.3."""
    start = (*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter)
    start += struct.unpack("<3I", nonce)
    x = list(start)
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(10):
        for a, b, c, d in columns + diagonals:
            for p, q, r, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[p] = (x[p] + x[q]) & 0xFFFFFFFF
                mixed = x[r] ^ x[p]
                x[r] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF
    return struct.pack("<16I", *((i + j) & 0xFFFFFFFF for i, j in zip(x, start, strict=True)))


def keystream(key: bytes, length: int) -> bytes:
    """ChaCha20 under a nonce of zeros from counter 0."""
    return b"".join(chacha_block(key, i, bytes(12)) for i in range(-(-length // 64)))[:length]


def mask(seed: bytes, words: int, offset: int = 0) -> list[int]:
    """Some words of 7.9."""
    begin, end = offset * 8, (offset + words) * 8
    stream = bytearray()
    for block in range(begin // 64, -(-end // 64)):
        chunk, counter = divmod(block, CHUNK // 64)
        stream += chacha_block(seed, counter, chunk.to_bytes(12, "little"))
    skip = begin % 64
    return [int.from_bytes(stream[skip + 8 * i : skip + 8 * i + 8], "little") for i in range(words)]


def add(vector: Sequence[int], sign_: int, stream: Sequence[int]) -> list[int]:
    """A vector plus or minus a mask."""
    return [(x + sign_ * y) % 2**64 for x, y in zip(vector, stream, strict=True)]


# ML-KEM-768 (FIPS 203)

Q = 3329
ZETAS = [pow(17, int(f"{i:07b}"[::-1], 2), Q) for i in range(128)]
GAMMAS = [pow(17, 2 * int(f"{i:07b}"[::-1], 2) + 1, Q) for i in range(128)]
Poly = list[int]


def _encode(poly: Poly, bits: int) -> bytes:
    return sum(value << bits * i for i, value in enumerate(poly)).to_bytes(32 * bits, "little")


def _decode(data: bytes, bits: int) -> Poly:
    number = int.from_bytes(data, "little")
    return [number >> bits * i & (1 << bits) - 1 for i in range(256)]


def _compress(poly: Poly, bits: int) -> Poly:
    return [((value << bits) + Q // 2) // Q % (1 << bits) for value in poly]


def _decompress(poly: Poly, bits: int) -> Poly:
    return [(value * Q + (1 << bits - 1)) >> bits for value in poly]


def _ntt(poly: Poly) -> Poly:
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
    f, i, length = list(poly), 127, 2
    while length <= 128:
        for start in range(0, 256, 2 * length):
            for j in range(start, start + length):
                f[j], f[j + length] = (f[j] + f[j + length]) % Q, ZETAS[i] * (f[j + length] - f[j]) % Q
            i -= 1
        length *= 2
    return [value * 3303 % Q for value in f]


def _dot(left: Sequence[Poly], right: Sequence[Poly]) -> Poly:
    total = [0] * 256
    for f, g in zip(left, right, strict=True):
        for i in range(128):
            a, b, c, d = f[2 * i], f[2 * i + 1], g[2 * i], g[2 * i + 1]
            total[2 * i] += a * c + b * d * GAMMAS[i]
            total[2 * i + 1] += a * d + b * c
    return [value % Q for value in total]


def _plus(left: Poly, right: Poly) -> Poly:
    return [(a + b) % Q for a, b in zip(left, right, strict=True)]


@lru_cache(maxsize=256)
def _uniform(seed: bytes) -> Poly:
    data, poly = hashlib.shake_128(seed).digest(1344), []
    for i in range(0, len(data), 3):
        low, high = data[i] + 256 * (data[i + 1] % 16), data[i + 1] // 16 + 16 * data[i + 2]
        poly += [value for value in (low, high) if value < Q]
    return poly[:256]


def _binomial(seed: bytes, nonce: int) -> Poly:
    bits = int.from_bytes(hashlib.shake_256(seed + bytes([nonce])).digest(128), "little")
    return [((bits >> 4 * i & 3).bit_count() - (bits >> 4 * i + 2 & 3).bit_count()) % Q for i in range(256)]


def mlkem_keys(d: bytes, z: bytes) -> tuple[bytes, bytes]:
    """Encapsulation and decapsulation key of two seeds."""
    both = hashlib.sha3_512(d + b"\3").digest()
    rho, sigma = both[:32], both[32:]
    s = [_ntt(_binomial(sigma, i)) for i in range(3)]
    e = [_ntt(_binomial(sigma, i + 3)) for i in range(3)]
    t = [_plus(_dot([_uniform(rho + bytes([j, i])) for j in range(3)], s), e[i]) for i in range(3)]
    public = b"".join(_encode(poly, 12) for poly in t) + rho
    return public, b"".join(_encode(poly, 12) for poly in s) + public + hashlib.sha3_256(public).digest() + z


def _mlkem_encrypt(public: bytes, message: bytes, seed: bytes) -> bytes:
    t, rho = [_decode(public[384 * i : 384 * i + 384], 12) for i in range(3)], public[1152:]
    y = [_ntt(_binomial(seed, i)) for i in range(3)]
    columns = [[_uniform(rho + bytes([i, j])) for j in range(3)] for i in range(3)]
    u = [_plus(_inverse_ntt(_dot(columns[i], y)), _binomial(seed, 3 + i)) for i in range(3)]
    v = _plus(_plus(_inverse_ntt(_dot(t, y)), _binomial(seed, 6)), _decompress(_decode(message, 1), 1))
    return b"".join(_encode(_compress(poly, 10), 10) for poly in u) + _encode(_compress(v, 4), 4)


def mlkem_encapsulate(public: bytes, message: bytes) -> tuple[bytes, bytes]:
    """Ciphertext and secret of 32 random bytes."""
    both = hashlib.sha3_512(message + hashlib.sha3_256(public).digest()).digest()
    return _mlkem_encrypt(public, message, both[32:]), both[:32]


def mlkem_decapsulate(private: bytes, ciphertext: bytes) -> bytes:
    """The secret of a ciphertext."""
    s, public = [_decode(private[384 * i : 384 * i + 384], 12) for i in range(3)], private[1152:2336]
    u = [_ntt(_decompress(_decode(ciphertext[320 * i : 320 * i + 320], 10), 10)) for i in range(3)]
    v = _decompress(_decode(ciphertext[960:], 4), 4)
    noisy = [(a - b) % Q for a, b in zip(v, _inverse_ntt(_dot(s, u)), strict=True)]
    message = _encode(_compress(noisy, 1), 1)
    both = hashlib.sha3_512(message + private[2336:2368]).digest()
    if _mlkem_encrypt(public, message, both[32:]) == ciphertext:
        return both[:32]
    return hashlib.shake_256(private[2368:] + ciphertext).digest(32)


# Keys (section 3)


class Pair:
    """The key pair of a root."""

    def __init__(self, root: bytes, agreement: str) -> None:
        """3.1 and 3.2."""
        self.root = root
        self.private = kdf(root, b"", "x25519")
        self.public = bindings.crypto_scalarmult_base(self.private)
        self.seeds = self.decapsulation = b""
        if agreement == HYBRID:
            self.seeds = kdf(root, b"", "mlkem768", "d") + kdf(root, b"", "mlkem768", "z")
            encapsulation, self.decapsulation = mlkem_keys(self.seeds[:32], self.seeds[32:])
            self.public += encapsulation

    def secret(self, peer: bytes, ciphertext: bytes) -> bytes:
        """What a receiver comes to, 3.4."""
        shared = bindings.crypto_scalarmult(self.private, peer[:32])
        return mlkem_decapsulate(self.decapsulation, ciphertext) + shared if ciphertext else shared


def public_size(agreement: str) -> int:
    """3.2."""
    return 32 + 1184 * (agreement == HYBRID)


def ciphertext_size(agreement: str) -> int:
    """3.4."""
    return 1088 * (agreement == HYBRID)


def coordinate(public: bytes) -> int:
    """The u-coordinate of a public key, as 3.3 reads it."""
    return int.from_bytes(public[:32], "little") % 2**255 % FIELD_PRIME


def check_public(public: bytes, agreement: str) -> None:
    """3.3."""
    require(len(public) == public_size(agreement), "malformed")
    require(coordinate(public) not in LOW_ORDER, "low-order-point")
    require(all(c < Q for i in range(32, len(public) - 32, 384) for c in _decode(public[i : i + 384], 12)), "malformed")


def sealing(
    usage: str, agreed: bytes, ctx: bytes, l1: bytes, ciphertext: bytes, ids: tuple[int, int]
) -> tuple[bytes, bytes]:
    """Key and associated data of 3.5."""
    return kdf(agreed, ctx, usage, l1, ciphertext, *ids), statement(usage, ctx, l1, *ids)


# Trees (section 4)


def _leaf(value: bytes) -> bytes:
    return hashlib.sha256(statement("tree", "leaf") + value).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(statement("tree", "node") + left + right).digest()


def _split(count: int) -> int:
    return 1 << (count - 1).bit_length() - 1


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """4.1."""
    if len(leaves) == 1:
        return _leaf(leaves[0])
    half = _split(len(leaves))
    return _node(tree_root(leaves[:half]), tree_root(leaves[half:]))


def tree_proof(leaves: Sequence[bytes], positions: Iterable[int]) -> list[bytes]:
    """4.2."""
    inside = set(positions)
    if not inside:
        return [tree_root(leaves)]
    if len(leaves) == 1:
        return []
    half = _split(len(leaves))
    left, right = {i for i in inside if i < half}, {i - half for i in inside if i >= half}
    return tree_proof(leaves[:half], left) + tree_proof(leaves[half:], right)


def proven_root(count: int, leaves: Mapping[int, bytes], proof: Sequence[bytes]) -> bytes:
    """The root that some leaves and a proof give."""
    rest = list(proof)

    def walk(begin: int, size: int) -> bytes:
        if not any(begin <= position < begin + size for position in leaves):
            require(rest, "malformed")
            return rest.pop(0)
        if size == 1:
            return _leaf(leaves[begin])
        half = _split(size)
        left = walk(begin, half)
        return _node(left, walk(begin + half, size - half))

    root = walk(0, count)
    require(not rest, "malformed")
    return root


# The ring (section 5)


class Graph:
    """Who is whose neighbour, and the points of the holders."""

    def __init__(self, seed: bytes, members: Iterable[int], degree: int) -> None:
        """5.2."""
        ids = sorted(members)
        stream = keystream(seed, 8 * len(ids))
        numbers = {v: int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i, v in enumerate(ids)}
        self.ring = sorted(ids, key=lambda v: (numbers[v], v))
        self.position = {v: i for i, v in enumerate(self.ring)}
        self.full, self.half = degree >= len(ids) - 1, degree // 2

    def neighbours(self, one: int) -> set[int]:
        """5.3."""
        if self.full:
            return set(self.ring) - {one}
        steps = [step for step in range(-self.half, self.half + 1) if step]
        return {self.ring[(self.position[one] + step) % len(self.ring)] for step in steps}

    def forward(self, a: int, b: int) -> int:
        """5.4."""
        return (self.position[b] - self.position[a]) % len(self.ring)

    def chooses(self, a: int, b: int) -> bool:
        """5.4."""
        return (self.forward(a, b), a) < (self.forward(b, a), b)

    def point(self, owner: int, holder: int) -> int:
        """5.5."""
        if self.full:
            return self.position[holder] + 1
        return (self.forward(owner, holder) + self.half) % len(self.ring) + 1

    def holders(self, owner: int) -> list[int]:
        """Those of 5.3 in the order of their points."""
        return sorted(self.neighbours(owner) | {owner}, key=lambda v: self.point(owner, v))


# Shares (7.3, 8.6)


def deal(secret: bytes, threshold: int, pool: bytes, points: Iterable[int]) -> list[bytes]:
    """The shares at some points."""
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [int.from_bytes(pool[49 * i : 49 * i + 49], "big") % SHARE_PRIME for i in range(threshold - 1)]
    values = (sum(c * pow(x, i, SHARE_PRIME) for i, c in enumerate(coefficients)) % SHARE_PRIME for x in points)
    return [value.to_bytes(33, "big") for value in values]


def at(position: int, shares: Mapping[int, int]) -> int:
    """What the polynomial through some shares is at a position."""
    total = 0
    for x, share in shares.items():
        above = below = 1
        for other in shares.keys() - {x}:
            above, below = above * (position - other) % SHARE_PRIME, below * (x - other) % SHARE_PRIME
        total += share * above * pow(below, -1, SHARE_PRIME)
    return total % SHARE_PRIME


def rebuild(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret of shares by point, or None where they do not lie on one polynomial or it is no secret."""
    numbers = {x: int.from_bytes(share, "big") for x, share in shares.items()}
    some = dict(list(numbers.items())[:threshold])
    secret = at(0, some)
    fits = all(at(x, some) == number for x, number in numbers.items())
    return secret.to_bytes(32, "big") if fits and secret < 2**256 else None


def share_commitment(ctx: bytes, owner: int, holder: int, kind: str, share: bytes) -> bytes:
    """A half of 7.4."""
    return digest("share-com", ctx, owner, holder, kind, share)[:16]


def is_number(share: bytes) -> bool:
    """Whether a share is below the prime."""
    return len(share) == 33 and int.from_bytes(share, "big") < SHARE_PRIME


# Parameters (section 2)


@dataclass
class Parameters:
    """2.1."""

    federation: str
    run: str
    round: int
    cohort: list[int]
    quorum: int
    degree: int
    threshold: int
    corrupt: int
    agreement: str
    words: int
    encoding: bytes
    roster_hash: bytes
    model_hash: bytes
    task_hash: bytes
    ctx: bytes = field(init=False)

    def __post_init__(self) -> None:
        """2.2."""
        numbers = (self.quorum, self.degree, self.threshold, self.corrupt)
        hashes = (self.roster_hash, self.model_hash, self.task_hash)
        names = (self.federation, self.run, self.round, len(self.cohort), join_ids(self.cohort))
        self.ctx = digest("ctx", *names, *numbers, self.agreement, self.words, self.encoding, *hashes)

    def check(self) -> None:
        """2.3."""
        n = len(self.cohort)
        fits = self.quorum <= n and 2 * self.quorum > n + self.corrupt
        if self.degree == n - 1:
            fits = fits and self.threshold <= self.quorum and 2 * self.threshold > n + self.corrupt
        else:
            fits = fits and self.degree % 2 == 0 and 2 <= self.degree < self.quorum - 1
            fits = fits and self.threshold <= self.degree + 1
            fits = fits and self.threshold >= threshold_bound(self.degree, self.quorum, self.corrupt)
        require(fits, "bad-parameters")


def _drawn(marked: int, size: int, draws: int, least: int) -> Fraction:
    ways = sum(comb(marked, i) * comb(size - marked, draws - i) for i in range(least, min(marked, draws) + 1))
    return Fraction(ways, comb(size, draws))


def threshold_bound(degree: int, quorum: int, corrupt: int) -> int:
    """2.5, in exact fractions."""
    h = degree // 2
    a = next(i for i in range(degree + 1) if _drawn(corrupt, quorum, degree, i + 1) <= Fraction(1, quorum << 128))
    m = 0
    for i in range(1, h + 1):
        chance = Fraction(0)
        for j in range(i, min(corrupt, h) + 1):
            first = Fraction(comb(corrupt, j) * comb(quorum - corrupt, h - j), comb(quorum, h))
            chance += first * _drawn(corrupt - j, quorum - h, h, i)
        m = i if chance > Fraction(1, quorum**2 << 127) else m
    return max(h + 2 + m, (degree + 1 + a) // 2 + 1)


# edwards25519 (9.3)

NEUTRAL = (0, 1)


def plus(a: Point, b: Point) -> Point:
    """The sum of two points."""
    t = CURVE_D * a[0] * b[0] * a[1] * b[1]
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + t, -1, FIELD_PRIME)
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - t, -1, FIELD_PRIME)
    return x % FIELD_PRIME, y % FIELD_PRIME


def negative(a: Point) -> Point:
    """Minus a point."""
    return -a[0] % FIELD_PRIME, a[1]


def times(number: int, a: Point) -> Point:
    """A multiple of a point."""
    total = NEUTRAL
    for bit in f"{number:b}":
        total = plus(total, total)
        total = plus(total, a) if bit == "1" else total
    return total


def over(y: int, odd: int) -> Point | None:
    """The point over y with an odd or an even x."""
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, FIELD_PRIME) % FIELD_PRIME
    x = pow(square, (FIELD_PRIME + 3) // 8, FIELD_PRIME)
    for root in (x, x * ROOT_OF_MINUS_ONE % FIELD_PRIME):
        if root * root % FIELD_PRIME == square:
            if root == 0 and odd:
                return None
            return (root if root % 2 == odd else FIELD_PRIME - root), y
    return None


BASE = over(4 * pow(5, -1, FIELD_PRIME) % FIELD_PRIME, 0) or NEUTRAL
BASE_8 = times(8, BASE)


def lift(public: bytes) -> Point | None:
    """9.3."""
    u = coordinate(public)
    return over((u - 1) * pow(u + 1, -1, FIELD_PRIME) % FIELD_PRIME, 0)


def encode_point(a: Point) -> bytes:
    """RFC 8032, section 5.1.2."""
    return (a[1] + (a[0] % 2 << 255)).to_bytes(32, "little")


def decode_point(data: bytes) -> Point | None:
    """RFC 8032, section 5.1.3."""
    number = int.from_bytes(data, "little")
    y, odd = number % 2**255, number >> 255
    return over(y, odd) if y < FIELD_PRIME else None


def montgomery(a: Point) -> bytes:
    """The u-coordinate of a point, as X25519 gives it."""
    return ((1 + a[1]) * pow(1 - a[1], -1, FIELD_PRIME) % FIELD_PRIME).to_bytes(32, "little")
