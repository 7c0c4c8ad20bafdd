"""The messages of the secure sum, from `docs/reference/specification.md` alone: section 6."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import fields, make_dataclass
from typing import Any

from reference.primitives import digest, is_number, proven_root, require

SIZES = {
    "c_public": (32, 1216),
    "s_public": (32, 1216),
    "signature": (64,),
    "signatures": (64,),
    "commitment": (32,),
    "own_commitments": (32,),
    "shares": (114, 1202),
    "pair_secrets": (48, 1136),
    "self_shares": (33,),
    "key_shares": (33,),
    "shared": (32,),
    "proof": (64,),
    "mlkem_seed": (0, 64),
}


def check_ids(ids: Collection[int], least: int = 1) -> None:
    """6.2 and 6.5."""
    require(least <= len(ids) <= 2**16 and all(1 <= v < 2**63 for v in ids), "malformed")
    require(len(set(ids)) == len(ids), "duplicate-id")
    require(isinstance(ids, Mapping) or list(ids) == sorted(ids), "malformed")


class Message:
    """What all messages have in common; the entries of a map may come in any order."""

    def values(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def parts(self) -> list[Any]:
        """The fields of 6.1, as they are hashed."""
        return list(self.values().values())

    def digest(self) -> bytes:
        """6.1."""
        return digest("message", self.kind, *self.parts())

    def check(self) -> None:
        """6.2 and 6.5."""
        for name, value in self.values().items():
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
KeyShares = row("KeyShares", "key-shares", "client_id commitment own_commitments shares pair_secrets signature")
Dealing = row("Dealing", "dealing", "client_id commitment signature proof")
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
        return proven_root(len(self.ids), leaves, self.proof)

    def parts(self) -> list[Any]:
        """6.1."""
        return [self.root(), self.ids, *(member.digest() for member in self.members)]

    def check(self) -> None:
        """6.2 and 6.5."""
        super().check()
        for member in self.members:
            member.check()
        check_ids([member.client_id for member in self.members])
        require({member.client_id for member in self.members} <= set(self.ids), "malformed")


class MaskedVector(row("MaskedVector", "input", "client_id vector")):
    """Its vector is hashed for itself."""

    def parts(self) -> list[Any]:
        """6.1, with the bytes of 1.1."""
        return [self.client_id, hashlib.sha256(b"".join(word.to_bytes(8, "little") for word in self.vector)).digest()]


class UnmaskShares(row("UnmaskShares", "unmask", "client_id self_shares key_shares")):
    """Its shares are numbers."""

    def check(self) -> None:
        """6.2 and 8.3."""
        super().check()
        require(all(map(is_number, [*self.self_shares.values(), *self.key_shares.values()])), "malformed")
        require(not self.self_shares.keys() & self.key_shares.keys(), "shares-for-both")
