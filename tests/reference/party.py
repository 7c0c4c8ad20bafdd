"""What a client and the server of the secure sum both do, from `docs/reference/specification.md` alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from reference import mlkem, standards
from reference.primitives import Graph, Pair, Parameters, check_public, digest, is_number, kdf, require, statement
from reference.standards import x25519

# The parts of 9.2: name of the public key, usage of what is sealed, length of the commitments before it.
PARTS = {"shares": ("c_public", "share", 32), "pair-secret": ("s_public", "pair-seal", 0)}


class Party:
    """One exchange; `l1`, `graph`, `sharers` (U2) and `survivors` (U3) are set once they are known."""

    l1: bytes
    graph: Graph
    sharers: set[int]
    survivors: set[int]

    def __init__(self, parameters: Parameters, roster: Mapping[int, bytes]) -> None:
        self.parameters, self.ctx, self.roster = parameters, parameters.ctx, roster
        self.ciphertext_size = 1088 if "mlkem" in parameters.agreement else 0

    def ring(self, ids: set[int], root: bytes) -> tuple[bytes, Graph]:
        """L1 of 5.1, and the graph of 5.2."""
        l1 = digest("cohort", self.ctx, ids, root)
        return l1, Graph(digest("order", self.ctx, l1), ids, self.parameters.degree)

    def check_advertisement(self, message: Any) -> None:
        """7.2, 7.12 and 8.3: of one who is in the cohort."""
        text = statement("adv", self.ctx, message.client_id, message.c_public, message.s_public)
        signed = standards.verifies(self.roster[message.client_id], text, message.signature)
        require(signed, "key-substitution")
        for public in (message.c_public, message.s_public):
            check_public(public, self.parameters.agreement)

    def check_distinct(self, messages: Iterable[Any]) -> None:
        """No public key twice, 7.2 and 8.3."""
        publics = [public for message in messages for public in (message.c_public, message.s_public)]
        require(len(set(publics)) == len(publics), "duplicate-key")

    def check_sizes(self, message: Any) -> None:
        """The sizes for the agreement, 7.7 and 8.3."""
        for sealed, size in ((message.shares, 114), (message.pair_secrets, 48)):
            require(all(len(part) == self.ciphertext_size + size for part in sealed.values()), "malformed")

    def seal(self, usage: str, pair: Pair, peer: bytes, ids: tuple[int, int], text: bytes) -> bytes:
        """3.4 and 3.5, with the ids of sender and receiver."""
        ciphertext, secret = mlkem.encapsulate(peer[32:], os.urandom(32)) if pair.seeds else (b"", b"")
        key = kdf(secret + x25519(pair.private, peer[:32]), self.ctx, usage, self.l1, ciphertext, *ids)
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
        numbers = is_number(text[:33]) and is_number(text[33:])
        return numbers and self.commitments(owner, holder, text) == parcel[:32]

    def leaves(self, message: Any) -> list[bytes]:
        """7.6."""
        parcels, secrets = {**message.shares, message.client_id: message.own_commitments}, message.pair_secrets
        holders = self.graph.holders(message.client_id)
        return [digest("shares-leaf", v, parcels[v], secrets.get(v, b"")) for v in holders]

    def dealing_text(self, message: Any, root: bytes) -> bytes:
        """What 7.6 signs, of KeyShares or a Dealing."""
        return statement("shares", self.ctx, self.l1, message.client_id, message.commitment, root)

    def pair_mask(self, own: int, v: int, secret: bytes) -> tuple[int, bytes]:
        """Sign and seed of a client's mask with v, 7.8."""
        return (1 if own < v else -1), kdf(secret, self.ctx, "pair", self.l1, min(own, v), max(own, v))

    def consistency_text(self) -> bytes:
        """What 7.10 signs."""
        return statement("consistency", self.ctx, self.l1, digest("sets", self.sharers, self.survivors))

    def challenge(self, complaint: Any, publics: Iterable[bytes], nonces: Iterable[bytes]) -> bytes:
        """The hash e of 9.4."""
        ids = (complaint.client_id, complaint.accused, complaint.part)
        return digest("complaint", self.ctx, self.l1, *ids, *publics, complaint.shared, *nonces)
