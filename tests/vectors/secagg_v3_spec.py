"""Version 3 of the protocol a second time, to make vectors with: straight from the formulas, and without fedcore.

Nothing here is checked, erased or fast. Primitives come from hashlib, hmac and `cryptography`; key derivation,
packing, the tree, the ring and Shamir's scheme are written out.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

VERSION = "fedcore/secagg/v3"
HYBRID = "x25519-mlkem768"
PRIME = 2**256 + 297
CHUNK = 64 * 1024 * 1024
CURVE_PRIME = 2**255 - 19
CURVE_ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE_D = -121665 * pow(121666, -1, CURVE_PRIME) % CURVE_PRIME

Field = bytes | str | int


def pack_ids(ids: Sequence[int]) -> bytes:
    return b"".join(i.to_bytes(8, "big") for i in ids)


def statement(usage: str, *fields: Field) -> bytes:
    """A tag ("" for the version itself) and fields, each after its length."""
    tag = f"{VERSION}/{usage}" if usage else VERSION
    packed = b""
    for field in (tag, *fields):
        raw = (
            field.to_bytes(8, "big") if isinstance(field, int) else field.encode() if isinstance(field, str) else field
        )
        packed += len(raw).to_bytes(8, "big") + raw
    return packed


def tagged_hash(usage: str, *fields: Field) -> bytes:
    return hashlib.sha256(statement(usage, *fields)).digest()


def derive(secret: bytes, salt: bytes, usage: str, *fields: Field) -> bytes:
    """HKDF-SHA256 (RFC 5869) with the statement as info; one block."""
    extracted = hmac.digest(salt or bytes(32), secret, "sha256")
    return hmac.digest(extracted, statement(usage, *fields) + b"\x01", "sha256")


def packed_map(entries: dict[int, bytes]) -> bytes:
    return b"".join(pack_ids((i, len(entries[i]))) + entries[i] for i in sorted(entries))


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """RFC 9162, section 2.1.1, under tags of our own."""
    if len(leaves) == 1:
        return hashlib.sha256(statement("tree", "leaf") + leaves[0]).digest()
    k = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(statement("tree", "node") + tree_root(leaves[:k]) + tree_root(leaves[k:])).digest()


def tree_proof(leaves: Sequence[bytes], shown: set[int]) -> list[bytes]:
    """The roots of the largest subtrees of which nothing is shown, from left to right."""
    if not shown:
        return [tree_root(leaves)]
    if len(leaves) == 1:
        return []
    k = 1 << (len(leaves) - 1).bit_length() - 1
    left, right = {i for i in shown if i < k}, {i - k for i in shown if i >= k}
    return tree_proof(leaves[:k], left) + tree_proof(leaves[k:], right)


def keystream(seed: bytes, start: int, size: int) -> bytes:
    """Bytes `start` .. `start + size` of a mask: chunk i of 64 MiB is ChaCha20 with nonce i and counter 0 up."""
    stream = b""
    while len(stream) < size:
        chunk, place = divmod(start + len(stream), CHUNK)
        nonce = (place // 64).to_bytes(4, "little") + chunk.to_bytes(12, "little")
        wanted = min(size - len(stream), CHUNK - place)
        block = Cipher(algorithms.ChaCha20(seed, nonce), mode=None).encryptor().update(bytes(place % 64 + wanted))
        stream += block[place % 64 :]
    return stream


def words(raw: bytes) -> list[int]:
    return [int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw), 8)]


def split(secret: bytes, pool: bytes, threshold: int, holders: int) -> list[bytes]:
    """Shamir's shares at the points 1 to `holders`; the coefficients are 49 bytes each of the pool, modulo p."""
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [int.from_bytes(pool[49 * i : 49 * i + 49], "big") % PRIME for i in range(threshold - 1)]
    values = (sum(c * point**power for power, c in enumerate(coefficients)) % PRIME for point in range(1, holders + 1))
    return [value.to_bytes(33, "big") for value in values]


def randomness(party: str) -> Callable[[int], bytes]:
    """Call k (from 1) for n bytes by party P gives the first n bytes of SHAKE-256("P/k")."""
    calls = 0

    def source(size: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(f"{party}/{calls}".encode()).digest(size)

    return source


@dataclass
class Pair:
    """A key pair from its root."""

    agreement: str
    root: bytes

    @cached_property
    def x25519(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(derive(self.root, b"", "x25519"))

    @cached_property
    def mlkem(self) -> MLKEM768PrivateKey:
        return MLKEM768PrivateKey.from_seed_bytes(b"".join(derive(self.root, b"", "mlkem768", part) for part in "dz"))

    @property
    def public(self) -> bytes:
        public = self.x25519.public_key().public_bytes_raw()
        return public + (self.mlkem.public_key().public_bytes_raw() if self.agreement == HYBRID else b"")

    def encapsulate(self, peer: bytes) -> tuple[bytes, bytes]:
        """Ciphertext and secret; the ciphertext of ML-KEM is random."""
        agreed = self.x25519.exchange(X25519PublicKey.from_public_bytes(peer[:32]))
        if self.agreement != HYBRID:
            return b"", agreed
        secret, ciphertext = MLKEM768PublicKey.from_public_bytes(peer[32:]).encapsulate()
        return ciphertext, secret + agreed


@dataclass
class Ring:
    """Who is whose neighbour: `order` follows from L1."""

    order: list[int]
    degree: int

    @classmethod
    def of(cls, ids: Sequence[int], degree: int, seed: bytes) -> Ring:
        raw = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(8 * len(ids)))
        keys = dict(zip(ids, words(raw), strict=True))
        return cls(sorted(ids, key=lambda i: (keys[i], i)), degree)

    @property
    def full(self) -> bool:
        return self.degree >= len(self.order) - 1

    def steps(self, one: int, two: int) -> int:
        """How many places `two` stands after `one`."""
        return (self.order.index(two) - self.order.index(one)) % len(self.order)

    def neighbours(self, owner: int) -> list[int]:
        near = (i for i in self.order if min(self.steps(owner, i), self.steps(i, owner)) <= self.degree // 2)
        return sorted(i for i in (self.order if self.full else near) if i != owner)

    def chooses(self, one: int, two: int) -> bool:
        return (self.steps(one, two), one) < (self.steps(two, one), two)

    def point(self, owner: int, holder: int) -> int:
        if self.full:
            return self.order.index(holder) + 1
        return (self.order.index(holder) - self.order.index(owner) + self.degree // 2) % len(self.order) + 1


@dataclass
class Bound:
    """What follows from ctx and L1."""

    context: bytes
    cohort: bytes

    def sealing(self, usage: str, agreed: bytes, ciphertext: bytes, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """Key and associated data of ChaCha20-Poly1305; the nonce is zero, since the key seals one text."""
        key = derive(agreed, self.context, usage, self.cohort, ciphertext, sender, receiver)
        return key, statement(usage, self.context, self.cohort, sender, receiver)

    def seal(self, usage: str, pair: Pair, peer: bytes, sender: int, receiver: int, text: bytes) -> bytes:
        ciphertext, agreed = pair.encapsulate(peer)
        key, associated = self.sealing(usage, agreed, ciphertext, sender, receiver)
        return ciphertext + ChaCha20Poly1305(key).encrypt(bytes(12), text, associated)

    def commitments(self, owner: int, holder: int, shares: Sequence[bytes]) -> bytes:
        """To a pair of shares, 16 bytes each."""
        kinds = zip(("key", "self"), shares, strict=True)
        return b"".join(tagged_hash("share-com", self.context, owner, holder, k, share)[:16] for k, share in kinds)

    def dealing(self, client: int, commitment: bytes, leaves: Sequence[bytes]) -> bytes:
        """What is signed about shares, whose leaves come in the order of the points."""
        return statement("shares", self.context, self.cohort, client, commitment, tree_root(leaves))

    def pair_secret(self, root: bytes, chooser: int, peer: int) -> bytes:
        return derive(root, self.context, "pair-secret", self.cohort, chooser, peer)

    def pair_seed(self, secret: bytes, one: int, two: int) -> bytes:
        return derive(secret, self.context, "pair", self.cohort, min(one, two), max(one, two))

    def self_seed(self, self_secret: bytes) -> bytes:
        return derive(self_secret, self.context, "self", self.cohort)

    def consistency(self, sharers: Sequence[int], survivors: Sequence[int]) -> bytes:
        sets = tagged_hash("sets", pack_ids(sharers), pack_ids(survivors))
        return statement("consistency", self.context, self.cohort, sets)


Affine = tuple[int, int]
"""A point of edwards25519."""


def lifted(u: bytes) -> Affine:
    """The point with an even x over a u-coordinate (RFC 7748, section 4.1)."""
    coordinate = int.from_bytes(u, "little") % 2**255 % CURVE_PRIME
    y = (coordinate - 1) * pow(coordinate + 1, -1, CURVE_PRIME) % CURVE_PRIME
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, CURVE_PRIME) % CURVE_PRIME
    x = pow(square, (CURVE_PRIME + 3) // 8, CURVE_PRIME)
    x = x if x * x % CURVE_PRIME == square else x * pow(2, (CURVE_PRIME - 1) // 4, CURVE_PRIME) % CURVE_PRIME
    return (x if x % 2 == 0 else CURVE_PRIME - x), y


def added(one: Affine, two: Affine) -> Affine:
    (a, b), (c, d) = one, two
    product = CURVE_D * a * b * c * d % CURVE_PRIME
    x = (a * d + b * c) * pow(1 + product, -1, CURVE_PRIME) % CURVE_PRIME
    y = (b * d + a * c) * pow(1 - product, -1, CURVE_PRIME) % CURVE_PRIME
    return x, y


def times(factor: int, point: Affine) -> Affine:
    total = (0, 1)
    for bit in f"{factor:b}":
        total = added(total, total)
        total = added(total, point) if bit == "1" else total
    return total


def encoded(point: Affine) -> bytes:
    return (point[1] + point[0] % 2 * 2**255).to_bytes(32, "little")


X25519_BASE = lifted((9).to_bytes(32, "little"))


def factor_of(pair: Pair) -> int:
    """The private key as what the lifted public key is of the base point."""
    raw = int.from_bytes(derive(pair.root, b"", "x25519"), "little")
    private = raw % 2**254 // 8 * 8 + 2**254
    return private if times(private, X25519_BASE)[0] % 2 == 0 else 8 * CURVE_ORDER - private


def possession(context: bytes, pair: Pair, client: int, part: str) -> bytes:
    """The proof that a client has the private half of one of its pairs, "c" or "s"."""
    nonce = b"".join(derive(pair.root, context, "possession-nonce", client, part, half) for half in (0, 1))
    k = int.from_bytes(nonce, "little") % CURVE_ORDER
    commitment = encoded(times(k, times(8, X25519_BASE)))
    challenge = tagged_hash("possession", context, client, part, pair.public[:32], commitment)
    response = (k + int.from_bytes(challenge, "little") * factor_of(pair)) % CURVE_ORDER
    return challenge + response.to_bytes(32, "little")


def complaint(
    bound: Bound, part: str, pair: Pair, accused_public: bytes, complainant: int, accused: int, nonce: bytes
) -> tuple[bytes, bytes, bytes]:
    """X, the proof, and the seed of the complainant's ML-KEM pair, if it has one."""
    peer, factor = lifted(accused_public[:32]), factor_of(pair)
    shared = encoded(times(factor, peer))
    k = int.from_bytes(nonce, "little") % CURVE_ORDER
    challenge = tagged_hash(
        "complaint", bound.context, bound.cohort, complainant, accused, part, pair.public, accused_public, shared,
        *(encoded(times(k, times(8, point))) for point in (X25519_BASE, peer)),
    )  # fmt: skip
    response = (k + int.from_bytes(challenge, "little") * factor) % CURVE_ORDER
    seed = b"".join(derive(pair.root, b"", "mlkem768", part) for part in "dz") if pair.agreement == HYBRID else b""
    return shared, challenge + response.to_bytes(32, "little"), seed
