"""The messages of a round as frozen values.

A message can be built from anything; `check()` raises ProtocolViolation("malformed", or a more precise name) unless
an honest party could have sent it, and both state machines call it before they look further. `digest()` is a hash of
a canonical form: equal digests mean the same message, which is what repetition and signing rely on.
Ids are client ids; sets of ids are tuples in ascending order. Bytes are raw keys, signatures and ciphertexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedcore.errors import ProtocolViolation
from fedcore.secagg.checks import Check
from fedcore.secagg.domain import HASH_BYTES, Field, Usage, pack, pack_ids, tagged_hash
from fedcore.secagg.keys import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES
from fedcore.secagg.parameters import MAX_COHORT, MAX_ID
from fedcore.secagg.shamir import SHARE_BYTES, is_share

SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""A sealed pair of shares: of the mask key s, then of the self secret b, then Poly1305's tag."""


@dataclass(frozen=True, slots=True)
class Advertisement:
    """R0, client to server: the round's public X25519 keys (32 bytes each) and the identity's signature (64)."""

    client_id: int
    c_public: bytes
    s_public: bytes
    signature: bytes

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_id(self.client_id)
        _check_bytes(self.c_public, KEY_BYTES, "a public key", self.client_id)
        _check_bytes(self.s_public, KEY_BYTES, "a public key", self.client_id)
        _check_bytes(self.signature, SIGNATURE_BYTES, "a signature", self.client_id)

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("advertisement", self.client_id, self.c_public, self.s_public, self.signature)


@dataclass(frozen=True, slots=True)
class AdvertisedCohort:
    """R0, server to clients: U1, every advertisement in ascending order of the ids."""

    members: tuple[Advertisement, ...]

    def check(self) -> None:
        """Raise ProtocolViolation unless every entry is right and no client occurs twice."""
        if not isinstance(self.members, tuple):
            raise ProtocolViolation(Check.MALFORMED, "the cohort is not a tuple")
        for member in self.members:
            if not isinstance(member, Advertisement):
                raise ProtocolViolation(Check.MALFORMED, "the cohort holds another kind of message")
            member.check()
        _check_ids(self.ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Who advertised."""
        return tuple(member.client_id for member in self.members)

    def digest(self) -> bytes:
        """L1, 32 bytes."""
        return _digest("cohort", *(member.digest() for member in self.members))


@dataclass(frozen=True, slots=True)
class KeyShares:
    """R1, client to server: the commitment to b (32 bytes), and receiver -> sealed pair of shares (82 bytes)."""

    client_id: int
    commitment: bytes
    sealed: Mapping[int, bytes] = field(repr=False)

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_id(self.client_id)
        _check_bytes(self.commitment, HASH_BYTES, "a commitment", self.client_id)
        _check_mapping(self.sealed, SEALED_BYTES, "a sealed share", self.client_id)

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("key-shares", self.client_id, self.commitment, _pack_mapping(self.sealed))


@dataclass(frozen=True, slots=True)
class ShareDelivery:
    """R1, server to one client: U2, and sender -> the pair of shares sealed for this client."""

    sharers: tuple[int, ...]
    sealed: Mapping[int, bytes] = field(repr=False)

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_ids(self.sharers)
        _check_mapping(self.sealed, SEALED_BYTES, "a sealed share")

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("delivery", pack_ids(self.sharers), _pack_mapping(self.sealed))


@dataclass(frozen=True, slots=True)
class Survivors:
    """R3, server to clients: U3, those whose masked vector is in the sum."""

    survivors: tuple[int, ...]

    def check(self) -> None:
        """Raise ProtocolViolation unless the ids are distinct, ascending and in range."""
        _check_ids(self.survivors)

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("survivors", pack_ids(self.survivors))


@dataclass(frozen=True, slots=True)
class ConsistencySignature:
    """R3, client to server: the identity's signature (64 bytes) over (ctx, L1, U2, U3)."""

    client_id: int
    signature: bytes

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_id(self.client_id)
        _check_bytes(self.signature, SIGNATURE_BYTES, "a signature", self.client_id)

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("consistency", self.client_id, self.signature)


@dataclass(frozen=True, slots=True)
class SignatureSet:
    """R4, server to clients: signer -> signature (64 bytes) over (ctx, L1, U2, U3)."""

    signatures: Mapping[int, bytes] = field(repr=False)

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_mapping(self.signatures, SIGNATURE_BYTES, "a signature")

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("signatures", _pack_mapping(self.signatures))


@dataclass(frozen=True, slots=True)
class UnmaskShares:
    """R4, client to server: 33-byte shares of b for survivors, of s for sharers that did not survive.

    Both are keyed by the client whose secret it is. The server may see them, a log may not: the repr shows none.
    """

    client_id: int
    self_shares: Mapping[int, bytes] = field(repr=False)
    key_shares: Mapping[int, bytes] = field(repr=False)

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and shares are right and nobody is named on both sides."""
        _check_id(self.client_id)
        for shares in (self.self_shares, self.key_shares):
            _check_mapping(shares, SHARE_BYTES, "a share", self.client_id)
            if not all(is_share(share) for share in shares.values()):
                raise ProtocolViolation(Check.MALFORMED, "a share is no element of the field", peer=self.client_id)
        if set(self.self_shares) & set(self.key_shares):
            raise ProtocolViolation(
                Check.SHARES_FOR_BOTH,
                "shares of both secrets of one client would unmask its update alone",
                peer=self.client_id,
            )

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest(
            "unmask",
            self.client_id,
            _pack_mapping(self.self_shares),
            _pack_mapping(self.key_shares),
        )


def input_digest(client_id: int, digest: bytes) -> bytes:
    """R2: a masked vector is known to the round by its own digest, which this ties to the sender; 32 bytes."""
    return _digest("input", client_id, digest)


def _digest(kind: str, *fields: Field) -> bytes:
    return tagged_hash(Usage.MESSAGE, kind, *fields)


def _pack_mapping(entries: Mapping[int, bytes]) -> bytes:
    return pack(*(pack(client, entries[client]) for client in sorted(entries)))


def _check_id(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ID:
        raise ProtocolViolation(Check.MALFORMED, "a client id is a whole number between 1 and 2^63 - 1")


def _check_ids(ids: object) -> None:
    if not isinstance(ids, tuple) or not 1 <= len(ids) <= MAX_COHORT:
        raise ProtocolViolation(Check.MALFORMED, f"a set of clients is a tuple of 1 to {MAX_COHORT} ids")
    for client_id in ids:
        _check_id(client_id)
    if len(set(ids)) != len(ids):
        raise ProtocolViolation(Check.DUPLICATE_ID, "a set of clients names one of them twice")
    if list(ids) != sorted(ids):
        raise ProtocolViolation(Check.MALFORMED, "a set of clients is in ascending order")


def _check_bytes(value: object, size: int, name: str, peer: int | None = None) -> None:
    if not isinstance(value, bytes) or len(value) != size:
        raise ProtocolViolation(Check.MALFORMED, f"{name} has {size} bytes", peer=peer)


def _check_mapping(entries: object, size: int, name: str, peer: int | None = None) -> None:
    if not isinstance(entries, Mapping) or len(entries) > MAX_COHORT:
        raise ProtocolViolation(Check.MALFORMED, f"expected at most {MAX_COHORT} entries of id and {name}", peer=peer)
    for client_id, value in entries.items():
        _check_id(client_id)
        _check_bytes(value, size, name, peer)
