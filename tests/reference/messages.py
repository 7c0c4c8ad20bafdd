"""Messages of the secure sum, and what both sides do, from `docs/reference/specification.md` alone: sections 3 to 9."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import make_dataclass
from functools import partial
from typing import Any

from reference import mlkem, standards
from reference import primitives as p
from reference.primitives import Graph, Pair, Parameters, digest, kdf, require, statement

SIZES = {
    "c_public": (32, 1216), "s_public": (32, 1216), "signature": (64,), "signatures": (64,), "commitment": (32,),
    "own_commitments": (32,), "shares": (114, 1202), "pair_secrets": (48, 1136), "possession": (128,),
    "self_shares": (33,), "key_shares": (33,), "shared": (32,), "proof": (64,), "mlkem_seed": (0, 64),
}  # fmt: skip

# The parts of 9.2: name of the public key, usage of what is sealed, length of the commitments before it.
PARTS = {"shares": ("c_public", "share", 32), "pair-secret": ("s_public", "pair-seal", 0)}


def check_ids(ids: Collection[int], least: int = 1) -> None:
    """6.2 and 6.5."""
    require(least <= len(ids) <= 2**16 and all(1 <= v < 2**63 for v in ids), "malformed")
    require(len(set(ids)) == len(ids), "duplicate-id")
    require(isinstance(ids, Mapping) or list(ids) == sorted(ids), "malformed")


class Message:
    """What all messages have in common; the entries of a map may come in any order."""

    def digest(self) -> bytes:
        """6.1."""
        return digest("message", self.kind, *vars(self).values())

    def check(self) -> None:
        """6.2 and 6.5."""
        for name, value in vars(self).items():
            if name in {"ids", "sharers", "survivors"}:
                check_ids(value)
            elif name in {"client_id", "accused"}:
                check_ids([value])
            elif isinstance(value, Mapping):
                check_ids(value, least=0)
                require(all(len(part) in SIZES[name] for part in value.values()), "malformed")
            elif isinstance(value, bytes):
                require(len(value) in SIZES[name], "malformed")
            elif name == "proof":
                require(all(len(part) == 32 for part in value), "malformed")


def row(name: str, kind: str, values: str) -> Any:
    """A row of the table of 6.1."""
    return make_dataclass(name, values.split(), bases=(Message,), namespace={"kind": kind})


Advertisement = row("Advertisement", "advertisement", "client_id c_public s_public signature")
DEALT = "client_id commitment own_commitments shares pair_secrets signature possession"
KeyShares = row("KeyShares", "key-shares", DEALT)
Dealing = row("Dealing", "dealing", "client_id commitment signature possession proof")
ShareDelivery = row("ShareDelivery", "delivery", "sharers shares pair_secrets")
Survivors = row("Survivors", "survivors", "survivors")
ConsistencySignature = row("ConsistencySignature", "consistency", "client_id signature")
SignatureSet = row("SignatureSet", "signatures", "signatures")
Complaint = row("Complaint", "complaint", "client_id accused part shared proof mlkem_seed")  # 9.2


class AdvertisedCohort(row("AdvertisedCohort", "cohort", "ids members proof")):
    """What is hashed of it is not what it has."""

    def root(self) -> bytes:
        """The root of 5.1, from the members and the proof."""
        leaves = {self.ids.index(member.client_id): member.digest() for member in self.members}
        return p.proven_root(len(self.ids), leaves, self.proof)

    def digest(self) -> bytes:
        """6.1."""
        return digest("message", self.kind, self.root(), self.ids, *(member.digest() for member in self.members))

    def check(self) -> None:
        """6.2 and 6.5."""
        check_ids(self.ids)
        for member in self.members:
            member.check()
        check_ids([member.client_id for member in self.members])
        require({member.client_id for member in self.members} <= set(self.ids), "malformed")
        super().check()


class MaskedVector(row("MaskedVector", "input", "client_id vector")):
    """Its vector is hashed for itself."""

    def digest(self) -> bytes:
        """6.1, with the bytes of 1.1."""
        data = b"".join(word.to_bytes(8, "little") for word in self.vector)
        return digest("message", self.kind, self.client_id, hashlib.sha256(data).digest())


class UnmaskShares(row("UnmaskShares", "unmask", "client_id self_shares key_shares")):
    """Its shares are numbers."""

    def check(self) -> None:
        """6.2 and 8.3."""
        super().check()
        require(all(map(p.is_number, [*self.self_shares.values(), *self.key_shares.values()])), "malformed")
        require(not self.self_shares.keys() & self.key_shares.keys(), "shares-for-both")


class Party:
    """What both sides do; `l1`, `graph`, `sharers` (U2) and `survivors` (U3) are set once they are known."""

    def __init__(self, parameters: Parameters, roster: Mapping[int, bytes]) -> None:
        self.parameters, self.ctx, self.roster = parameters, parameters.ctx, roster
        self.ciphertext_size = 1088 if "mlkem" in parameters.agreement else 0

    def ring(self, ids: set[int], root: bytes) -> tuple[bytes, Graph]:
        """L1 of 5.1, and the graph of 5.2."""
        l1 = digest("cohort", self.ctx, ids, root)
        return l1, Graph(digest("order", self.ctx, l1), ids, self.parameters.degree)

    def check_advertisements(self, some: Iterable[Any], known: Iterable[Any] = ()) -> None:
        """7.2, 7.12 and 8.3: of clients in the cohort, with others' that are known."""
        for one in some:
            text = statement("adv", self.ctx, one.client_id, one.c_public, one.s_public)
            require(standards.verifies(self.roster[one.client_id], text, one.signature), "key-substitution")
            p.check_public(one.c_public, self.parameters.agreement)
            p.check_public(one.s_public, self.parameters.agreement)
        publics = [public for one in (*some, *known) for public in (one.c_public, one.s_public)]
        require(len(set(publics)) == len(publics), "duplicate-key")

    def check_sizes(self, message: Any) -> None:
        """The sizes for the agreement, 7.7 and 8.3."""
        for sealed, size in ((message.shares, 114), (message.pair_secrets, 48)):
            require(all(len(part) == self.ciphertext_size + size for part in sealed.values()), "malformed")

    def seal(self, usage: str, pair: Pair, peer: bytes, ids: tuple[int, int], text: bytes) -> bytes:
        """3.4 and 3.5, with the ids of sender and receiver."""
        ciphertext, secret = mlkem.encapsulate(peer[32:]) if pair.seeds else (b"", b"")
        key = kdf(secret + standards.x25519(pair.private, peer[:32]), self.ctx, usage, self.l1, ciphertext, *ids)
        return ciphertext + standards.seal(key, text, statement(usage, self.ctx, self.l1, *ids))

    def unseal(self, usage: str, shared: bytes, seeds: bytes, ids: tuple[int, int], sealed: bytes) -> bytes | None:
        """The text of 3.5 or None, with X25519's secret and the seeds of the receiver's ML-KEM key."""
        ciphertext, rest = sealed[: self.ciphertext_size], sealed[self.ciphertext_size :]
        secret = mlkem.decapsulate(mlkem.keys(seeds)[1], ciphertext) if ciphertext else b""
        key = kdf(secret + shared, self.ctx, usage, self.l1, ciphertext, *ids)
        return standards.unseal(key, rest, statement(usage, self.ctx, self.l1, *ids))

    def commitments(self, owner: int, holder: int, text: bytes) -> bytes:
        """7.4, of share of r || share of b."""
        both = (("key", text[:33]), ("self", text[33:]))
        return b"".join(digest("share-com", self.ctx, owner, holder, kind, share)[:16] for kind, share in both)

    def is_committed(self, owner: int, holder: int, parcel: bytes, text: bytes) -> bool:
        """What 7.7 asks of an opened parcel."""
        numbers = p.is_number(text[:33]) and p.is_number(text[33:])
        return numbers and self.commitments(owner, holder, text) == parcel[:32]

    def leaves(self, message: Any) -> list[bytes]:
        """7.6."""
        parcels, secrets = {**message.shares, message.client_id: message.own_commitments}, message.pair_secrets
        holders = self.graph.holders(message.client_id)
        return [digest("shares-leaf", v, parcels[v], secrets.get(v, b"")) for v in holders]

    def dealing_text(self, message: Any, root: bytes) -> bytes:
        """What 7.6 signs, of KeyShares or a Dealing."""
        return statement("shares", self.ctx, self.l1, message.client_id, message.commitment, root)

    def is_signed(self, message: Any, root: bytes, dealer: Any) -> bool:
        """What 9.1 and 9.6 ask of KeyShares or a Dealing, with the dealer's advertisement."""
        for part, public, i in (("c", dealer.c_public, 0), ("s", dealer.s_public, 64)):
            lifted, fields = standards.lift_8(public), (self.ctx, message.client_id, part, public[:32])
            hashed, proof = partial(digest, "possession", *fields), message.possession[i : i + 64]
            if lifted and not standards.holds(proof, hashed, (standards.BASE_8, lifted)):
                return False
        return standards.verifies(self.roster[message.client_id], self.dealing_text(message, root), message.signature)

    def pair_mask(self, own: int, v: int, secret: bytes) -> tuple[int, bytes]:
        """Sign and seed of a client's mask with v, 7.8."""
        return (1 if own < v else -1), kdf(secret, self.ctx, "pair", self.l1, min(own, v), max(own, v))

    def consistency_text(self) -> bytes:
        """What 7.10 signs."""
        return statement("consistency", self.ctx, self.l1, digest("sets", self.sharers, self.survivors))

    def challenge(self, complaint: Any, publics: Iterable[bytes], *nonces: bytes) -> bytes:
        """The hash e of 9.4."""
        ids = (complaint.client_id, complaint.accused, complaint.part)
        return digest("complaint", self.ctx, self.l1, *ids, *publics, complaint.shared, *nonces)
