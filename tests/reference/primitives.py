"""Parts of the secure sum, from `docs/reference/specification.md` alone: 1 to 5, and sharing; option 10 is left out."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import make_dataclass
from fractions import Fraction
from math import comb
from typing import Any

from reference import mlkem
from reference.standards import X25519_BASE, chacha20_block, hkdf, is_low_order, x25519

SHARE_PRIME = 2**256 + 297
HYBRID = "x25519-mlkem768"
NAMES = "federation run round cohort quorum degree threshold corrupt agreement words encoding"


class Refusal(Exception):
    """A message is refused: the check's name and, of 7.7, who sealed the part that cannot be used."""

    def __init__(self, check: str, dealer: int | None = None, part: str = "") -> None:
        self.check, self.dealer, self.part = check, dealer, part


def require(condition: object, check: str) -> None:
    """Refuse unless the condition holds."""
    if not condition:
        raise Refusal(check)


def pack(value: Any) -> bytes:
    """1.2 and 1.3; a set of ids by 1.7, a map by 1.8, the entries of a list as they come."""
    if isinstance(value, bytes | str):
        return value.encode() if isinstance(value, str) else value
    if isinstance(value, int):
        require(0 <= value < 2**63, "malformed")
        return value.to_bytes(8, "big")
    if isinstance(value, Mapping):
        return b"".join(pack(v) + pack(len(value[v])) + value[v] for v in sorted(value))
    return b"".join(map(pack, sorted(value) if isinstance(value, Set) else value))


def statement(usage: str, *values: Any) -> bytes:
    """1.4."""
    tag = b"fedcore/secagg/v3" if usage == "ctx" else b"fedcore/secagg/v3/" + usage.encode()
    return b"".join(pack(len(part)) + part for part in (tag, *map(pack, values)))


def digest(usage: str, *values: Any) -> bytes:
    """H of 1.5."""
    return hashlib.sha256(statement(usage, *values)).digest()


def kdf(secret: bytes, salt: bytes, usage: str, *values: Any) -> bytes:
    """1.6."""
    return hkdf(secret, salt, statement(usage, *values))


class Parameters(make_dataclass("Parameters", [*NAMES.split(), "roster_hash", "model_hash", "task_hash"])):
    """2.1."""

    @property
    def ctx(self) -> bytes:
        """2.2."""
        values = list(vars(self).values())
        return digest("ctx", *values[:3], len(self.cohort), *values[3:])

    def check(self) -> None:
        """2.3 and 2.6."""
        n, k, t, quorum, corrupt = len(self.cohort), self.degree, self.threshold, self.quorum, self.corrupt
        fits = self.federation and self.run and min(self.cohort) > 0 and 2 <= n <= 2**16 and 1 <= self.words <= 2**40
        require(fits and quorum <= n and 2 * quorum > n + corrupt, "bad-parameters")
        if k == n - 1:
            fits = t <= quorum and 2 * t > n + corrupt
        else:
            fits = k % 2 == 0 and 2 <= k < quorum - 1 and threshold_bound(k, quorum, corrupt) <= t <= k + 1
        require(fits, "bad-parameters")


def threshold_bound(degree: int, quorum: int, corrupt: int) -> int:
    """2.5, in exact fractions."""

    def draw(marked: int, size: int, draws: int, least: int) -> dict[int, Fraction]:
        """P[so many of the draws are marked], from a number on."""
        counts = range(least, min(marked, draws) + 1)
        return {i: Fraction(comb(marked, i) * comb(size - marked, draws - i), comb(size, draws)) for i in counts}

    def twice(least: int) -> Fraction:
        """P[each of two groups has so many marked]."""
        first = draw(corrupt, quorum, h, least)
        return sum(chance * sum(draw(corrupt - i, quorum - h, h, least).values()) for i, chance in first.items())

    h = degree // 2
    a = next(a for a in range(degree + 1) if sum(draw(corrupt, quorum, degree, a + 1).values()) * quorum <= 2**-128)
    m = max((m for m in range(1, h + 1) if twice(m) * quorum**2 > 2**-127), default=0)
    return max(h + 2 + m, (degree + 1 + a) // 2 + 1)


class Pair:
    """The key pair of a root, 3.1 and 3.2."""

    def __init__(self, root: bytes, agreement: str) -> None:
        self.root, self.private, self.seeds = root, kdf(root, b"", "x25519"), b""
        self.public = x25519(self.private, X25519_BASE)
        if agreement == HYBRID:
            self.seeds = kdf(root, b"", "mlkem768", "d") + kdf(root, b"", "mlkem768", "z")
            self.public += mlkem.keys(self.seeds)[0]


def check_public(public: bytes, agreement: str) -> None:
    """3.3."""
    require(len(public) == (1216 if agreement == HYBRID else 32), "malformed")
    require(not is_low_order(public), "low-order-point")
    require(agreement != HYBRID or mlkem.is_key(public[32:]), "malformed")


def proven_root(count: int, leaves: Mapping[int, bytes], proof: Sequence[bytes]) -> bytes:
    """The root that some of `count` leaves, by place from 0, and a proof give: 4.1 and 4.2."""
    rest = list(proof)

    def root(begin: int, size: int) -> bytes:
        if not any(begin <= place < begin + size for place in leaves):
            require(rest, "malformed")
            return rest.pop(0)
        if size == 1:
            return hashlib.sha256(statement("tree", "leaf") + leaves[begin]).digest()
        half = 1 << (size - 1).bit_length() - 1
        return hashlib.sha256(statement("tree", "node") + root(begin, half) + root(begin + half, size - half)).digest()

    whole = root(0, count)
    require(not rest, "malformed")
    return whole


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """4.1."""
    return proven_root(len(leaves), dict(enumerate(leaves)), [])


def tree_proof(leaves: Sequence[bytes], shown: set[int]) -> list[bytes]:
    """4.2."""
    if not shown or len(leaves) == 1:
        return [] if shown else [tree_root(leaves)]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    left, right = {i for i in shown if i < half}, {i - half for i in shown if i >= half}
    return tree_proof(leaves[:half], left) + tree_proof(leaves[half:], right)


class Graph:
    """Who is whose neighbour, and the points of the holders."""

    def __init__(self, seed: bytes, members: Iterable[int], degree: int) -> None:
        """5.2; its stream is the first chunk of 7.9."""
        ids = sorted(members)
        self.ring = [v for _, v in sorted(zip(mask(seed, len(ids)), ids, strict=True))]
        self.place = {v: i for i, v in enumerate(self.ring)}
        self.full, self.half = degree >= len(ids) - 1, degree // 2

    def neighbours(self, one: int) -> set[int]:
        """5.3."""
        steps = range(len(self.ring)) if self.full else range(-self.half, self.half + 1)
        return {self.ring[(self.place[one] + step) % len(self.ring)] for step in steps} - {one}

    def forward(self, a: int, b: int) -> int:
        """5.4."""
        return (self.place[b] - self.place[a]) % len(self.ring)

    def chooses(self, a: int, b: int) -> bool:
        """5.4."""
        return (self.forward(a, b), a) < (self.forward(b, a), b)

    def point(self, owner: int, holder: int) -> int:
        """5.5."""
        return 1 + (self.place[holder] if self.full else (self.forward(owner, holder) + self.half) % len(self.ring))

    def holders(self, owner: int) -> list[int]:
        """Those of 5.3 in the order of their points."""
        return sorted(self.neighbours(owner) | {owner}, key=lambda v: self.point(owner, v))


def deal(secret: bytes, threshold: int, pool: bytes, points: Iterable[int]) -> list[bytes]:
    """The shares of 7.3 at some points."""
    parts = [secret, *(pool[i : i + 49] for i in range(0, 49 * (threshold - 1), 49))]
    coefficients = [int.from_bytes(part, "big") for part in parts]
    return [(sum(c * x**i for i, c in enumerate(coefficients)) % SHARE_PRIME).to_bytes(33, "big") for x in points]


def rebuild(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret of shares by point, None if they do not fit (8.8) or it is no secret (8.6)."""
    numbers = {x: int.from_bytes(share, "big") for x, share in shares.items()}
    some = dict(list(numbers.items())[:threshold])

    def at(point: int) -> int:
        """The polynomial through some shares, by Lagrange."""
        total = 0
        for x, share in some.items():
            above = below = 1
            for other in some.keys() - {x}:
                above, below = above * (point - other), below * (x - other)
            total += share * above * pow(below, -1, SHARE_PRIME)
        return total % SHARE_PRIME

    fits = all(at(x) == number for x, number in numbers.items()) and at(0) < 2**256
    return at(0).to_bytes(32, "big") if fits else None


def is_number(share: bytes) -> bool:
    """Whether a share is below p, 7.7 and 8.3."""
    return len(share) == 33 and int.from_bytes(share, "big") < SHARE_PRIME


def mask(seed: bytes, words: int, offset: int = 0) -> list[int]:
    """7.9, from a word on; a chunk is 2^20 blocks of 8 words."""
    blocks = range(offset // 8, -(-(offset + words) // 8))
    stream = b"".join(chacha20_block(seed, i % 2**20, (i // 2**20).to_bytes(12, "little")) for i in blocks)
    return [word for (word,) in struct.iter_unpack("<Q", stream)][offset % 8 :][:words]


def apply(vector: Sequence[int], masks: Iterable[tuple[int, bytes]]) -> list[int]:
    """A vector plus masks by sign and seed, 1.1."""
    streams = [[sign * word for word in mask(seed, len(vector))] for sign, seed in masks]
    return [sum(words) % 2**64 for words in zip(vector, *streams, strict=True)]
