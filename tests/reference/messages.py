"""The messages of the secure sum, from `docs/reference/specification.md` alone: section 6."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from reference import primitives as p
from reference.primitives import Graph, Parameters, digest, join_ids, join_map, require

MOST_CLIENTS = 2**16
BOTH = ("x25519", p.HYBRID)
SIZES: Mapping[str, Sequence[int]] = {
    "c_public": tuple(map(p.public_size, BOTH)),
    "s_public": tuple(map(p.public_size, BOTH)),
    "signature": (64,),
    "signatures": (64,),
    "commitment": (32,),
    "own_commitments": (32,),
    "shares": tuple(size + 114 for size in map(p.ciphertext_size, BOTH)),
    "pair_secrets": tuple(size + 48 for size in map(p.ciphertext_size, BOTH)),
    "self_shares": (33,),
    "key_shares": (33,),
    "shared": (32,),
    "proof": (64,),
    "mlkem_seed": (0, 64),
}


def check_list(ids: Collection[int], *, is_empty: bool = False) -> None:
    """6.2."""
    require((ids or is_empty) and len(ids) <= MOST_CLIENTS, "malformed")
    require(all(1 <= v <= p.MOST for v in ids), "malformed")
    require(len(set(ids)) == len(ids), "duplicate-id")
    require(isinstance(ids, Mapping) or list(ids) == sorted(ids), "malformed")


class Message:
    """6.1: the fields of a message are those of the table, in its order."""

    kind: ClassVar[str]

    def parts(self) -> list[p.Field]:
        """What is hashed."""
        packed: list[p.Field] = []
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                packed.append(join_map(value))
            elif isinstance(value, tuple | list):
                packed.append(join_ids(value) if name in {"sharers", "survivors"} else b"".join(value))
            else:
                packed.append(value)
        return packed

    def digest(self) -> bytes:
        """6.1."""
        return digest("message", self.kind, *self.parts())

    def check(self) -> None:
        """6.2: ids, and the sizes of either agreement."""
        for field in fields(self):
            value, sizes = getattr(self, field.name), SIZES.get(field.name, ())
            if isinstance(value, Mapping):
                check_list(value, is_empty=True)
                require(all(len(part) in sizes for part in value.values()), "malformed")
            elif field.name in {"sharers", "survivors", "ids"}:
                check_list(value)
            elif field.name in {"client_id", "accused"}:
                check_list([value])
            elif field.name == "proof" and isinstance(value, tuple | list):
                require(all(len(part) == 32 for part in value), "malformed")
            elif isinstance(value, bytes):
                require(len(value) in sizes, "malformed")


@dataclass
class Advertisement(Message):
    """R0, from a client."""

    kind = "advertisement"
    client_id: int
    c_public: bytes
    s_public: bytes
    signature: bytes

    def verify(self, parameters: Parameters, roster: Mapping[int, bytes]) -> None:
        """7.2 and 8.3: of who is in the cohort."""
        text = p.statement("adv", parameters.ctx, self.client_id, self.c_public, self.s_public)
        require(p.verifies(roster[self.client_id], text, self.signature), "key-substitution")
        for public in (self.c_public, self.s_public):
            p.check_public(public, parameters.agreement)


@dataclass
class AdvertisedCohort(Message):
    """R1, from the server."""

    kind = "cohort"
    ids: Sequence[int]
    members: Sequence[Advertisement]
    proof: Sequence[bytes]

    def root(self) -> bytes:
        """The root of 5.1, from the members and the proof."""
        positions = {v: i for i, v in enumerate(self.ids)}
        leaves = {positions[member.client_id]: member.digest() for member in self.members}
        return p.proven_root(len(self.ids), leaves, self.proof)

    def parts(self) -> list[p.Field]:
        """What is hashed."""
        return [self.root(), join_ids(self.ids), *(member.digest() for member in self.members)]

    def check(self) -> None:
        """6.2."""
        super().check()
        for member in self.members:
            member.check()
        members = [member.client_id for member in self.members]
        check_list(members)
        require(set(members) <= set(self.ids), "malformed")


@dataclass
class KeyShares(Message):
    """R1, from a client."""

    kind = "key-shares"
    client_id: int
    commitment: bytes
    own_commitments: bytes
    shares: Mapping[int, bytes]
    pair_secrets: Mapping[int, bytes]
    signature: bytes

    def leaves(self, graph: Graph) -> list[bytes]:
        """Those of the tree of 7.6."""
        parts = {**self.shares, self.client_id: self.own_commitments}
        return [parcel_leaf(v, parts[v], self.pair_secrets.get(v, b"")) for v in graph.holders(self.client_id)]

    def statement(self, ctx: bytes, l1: bytes, graph: Graph) -> bytes:
        """What is signed."""
        root = p.tree_root(self.leaves(graph))
        return p.statement("shares", ctx, l1, self.client_id, self.commitment, root)


@dataclass
class Dealing(Message):
    """R1, from the server."""

    kind = "dealing"
    client_id: int
    commitment: bytes
    signature: bytes
    proof: Sequence[bytes]


@dataclass
class ShareDelivery(Message):
    """R1, from the server."""

    kind = "delivery"
    sharers: Sequence[int]
    shares: Mapping[int, bytes]
    pair_secrets: Mapping[int, bytes]


@dataclass
class MaskedVector(Message):
    """R2, from a client."""

    kind = "input"
    client_id: int
    vector: Sequence[int]

    def parts(self) -> list[p.Field]:
        """What is hashed."""
        data = b"".join(word.to_bytes(8, "little") for word in self.vector)
        return [self.client_id, hashlib.sha256(data).digest()]


@dataclass
class Survivors(Message):
    """R3, from the server."""

    kind = "survivors"
    survivors: Sequence[int]


@dataclass
class ConsistencySignature(Message):
    """R3, from a client."""

    kind = "consistency"
    client_id: int
    signature: bytes


@dataclass
class SignatureSet(Message):
    """R4, from the server."""

    kind = "signatures"
    signatures: Mapping[int, bytes]


@dataclass
class UnmaskShares(Message):
    """R4, from a client."""

    kind = "unmask"
    client_id: int
    self_shares: Mapping[int, bytes]
    key_shares: Mapping[int, bytes]

    def check(self) -> None:
        """6.2 and 8.3."""
        super().check()
        both = (self.self_shares, self.key_shares)
        require(all(p.is_number(share) for shares in both for share in shares.values()), "malformed")
        require(not self.self_shares.keys() & self.key_shares.keys(), "shares-for-both")


@dataclass
class Complaint(Message):
    """9.2."""

    kind = "complaint"
    client_id: int
    accused: int
    part: str
    shared: bytes
    proof: bytes
    mlkem_seed: bytes

    def challenge(self, ctx: bytes, l1: bytes, publics: Sequence[bytes], nonces: Sequence[p.Point]) -> bytes:
        """The hash e of 9.4."""
        ids = (self.client_id, self.accused, self.part)
        return digest("complaint", ctx, l1, *ids, *publics, self.shared, *map(p.encode_point, nonces))


def parcel_leaf(holder: int, parcel: bytes, pair_secret: bytes) -> bytes:
    """A leaf of 7.6."""
    return digest("shares-leaf", holder, parcel, pair_secret)


def check_dealt(ctx: bytes, dealer: int, holder: int, parcel: bytes, text: bytes) -> None:
    """What 7.7 asks of what is in an opened parcel."""
    for kind, commitment, share in (("key", parcel[:16], text[:33]), ("self", parcel[16:32], text[33:])):
        if not p.is_number(share) or p.share_commitment(ctx, dealer, holder, kind, share) != commitment:
            raise p.Refusal("uncommitted-share", dealer, "shares")


def check_sealed(shares: Mapping[int, bytes], pair_secrets: Mapping[int, bytes], agreement: str) -> None:
    """The sizes for one agreement."""
    size = p.ciphertext_size(agreement)
    require(all(len(sealed) == size + 114 for sealed in shares.values()), "malformed")
    require(all(len(sealed) == size + 48 for sealed in pair_secrets.values()), "malformed")


def consistency(parameters: Parameters, l1: bytes, sharers: Collection[int], survivors: Collection[int]) -> bytes:
    """What is signed in R3."""
    return p.statement("consistency", parameters.ctx, l1, digest("sets", join_ids(sharers), join_ids(survivors)))
