"""The messages of a round as frozen values.

A message can be built from anything; `check()` raises ProtocolViolation("malformed", or a more precise name) unless
an honest party could have sent it, and both state machines call it before they look further. `digest()` is a hash of
a canonical form: equal digests mean the same message, which is what repetition and signing rely on.
Ids are client ids; sets of ids are tuples in ascending order. Bytes are raw keys, signatures and ciphertexts.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedcore.errors import ProtocolViolation
from fedcore.secagg.checks import Check
from fedcore.secagg.crypto.agreement import Agreement
from fedcore.secagg.crypto.domain import HASH_BYTES, Field, Usage, pack_ids, tagged_hash
from fedcore.secagg.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES
from fedcore.secagg.crypto.possession import PROOF_BYTES
from fedcore.secagg.crypto.shamir import SHARE_BYTES, is_share
from fedcore.secagg.crypto.tree import root_of
from fedcore.secagg.parameters import MAX_COHORT, MAX_ID

SHARE_COMMITMENT_BYTES = 16
COMMITMENTS_BYTES = 2 * SHARE_COMMITMENT_BYTES
"""The commitments to a pair of shares: of the mask root r, then of the self secret b (`dealing`)."""
PARCEL_BYTES = COMMITMENTS_BYTES + 2 * SHARE_BYTES + TAG_BYTES
"""A parcel: the commitments, both shares sealed, Poly1305's tag; without the ciphertext of the agreement."""
SEALED_SECRET_BYTES = KEY_BYTES + TAG_BYTES
"""A sealed pair secret."""
POSSESSION_BYTES = 2 * PROOF_BYTES
"""Proofs of possession: of c, then of s."""
PUBLIC_SIZES = frozenset(agreement.public_bytes for agreement in Agreement)
CIPHERTEXT_SIZES = frozenset(agreement.ciphertext_bytes for agreement in Agreement)

_OPTIONAL_HASH = frozenset({0, HASH_BYTES})


class RoundMessage(Protocol):
    """A message of a client to the server, in any stage."""

    @property
    def client_id(self) -> int: ...
    def check(self) -> None: ...
    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Advertisement:
    """R0, client to server: the round's two public keys and the identity's signature (64 bytes).

    c is for sealing shares, s for the secrets of pairwise masks; 32 bytes each, or 1216 with ML-KEM.
    """

    client_id: int
    c_public: bytes
    s_public: bytes
    signature: bytes

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_id(self.client_id)
        _check_sizes(self.c_public, PUBLIC_SIZES, "a public key", self.client_id)
        _check_sizes(self.s_public, PUBLIC_SIZES, "a public key", self.client_id)
        _check_bytes(self.signature, SIGNATURE_BYTES, "a signature", self.client_id)

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("advertisement", self.client_id, self.c_public, self.s_public, self.signature)


@dataclass(frozen=True, slots=True)
class AdvertisedCohort:
    """R0, server to one client: U1, the advertisements of the client and its neighbours, and a proof of the rest.

    `ids` are all of U1. `members` are in ascending order of the ids. `proof` holds the hashes (32 bytes each) that
    `tree.root_of` needs for the other leaves; on the full graph there are none.
    """

    ids: tuple[int, ...]
    members: tuple[Advertisement, ...]
    proof: tuple[bytes, ...]

    def check(self) -> None:
        """Raise ProtocolViolation unless every entry is right, occurs once and is in U1."""
        _check_ids(self.ids)
        if not isinstance(self.members, tuple) or not isinstance(self.proof, tuple):
            raise ProtocolViolation(Check.MALFORMED, "the cohort's members and proof are tuples")
        for member in self.members:
            if not isinstance(member, Advertisement):
                raise ProtocolViolation(Check.MALFORMED, "the cohort holds another kind of message")
            member.check()
        members = tuple(member.client_id for member in self.members)
        _check_ids(members)
        if not set(members) <= set(self.ids):
            raise ProtocolViolation(Check.MALFORMED, "the cohort shows keys of a client that it does not list")
        for value in self.proof:
            _check_bytes(value, HASH_BYTES, "a hash")

    def digest(self, root: bytes | None = None) -> bytes:
        """32 bytes.

        Args:
            root: that of `root()`, if it is known already.
        """
        return _digest("cohort", root or self.root(), pack_ids(self.ids), *(member.digest() for member in self.members))

    def root(self) -> bytes:
        """The root of the tree over the advertisements of all of U1, 32 bytes."""
        leaves = {bisect_left(self.ids, member.client_id): member.digest() for member in self.members}
        return root_of(leaves, len(self.ids), self.proof)


@dataclass(frozen=True, slots=True)
class KeyShares:
    """R1, client to server: the commitment to b (32 bytes), and by receiver what is dealt to it.

    `shares` are the parcels, one for every neighbour: 32 bytes of commitments, a ciphertext of the agreement, then 82
    sealed bytes; `own_commitments` those to the shares that the client keeps. `pair_secrets` go to those for whom the
    sender chooses the secret of their masks: a ciphertext, then 48 sealed bytes. `signature` (64 bytes) is the
    identity's over all of it (`dealing.dealing_statement`). `possession` (128 bytes) proves that the sender has the
    private halves of c and s; nobody looks at it before a client complains.
    """

    client_id: int
    commitment: bytes
    own_commitments: bytes
    shares: Mapping[int, bytes] = field(repr=False)
    pair_secrets: Mapping[int, bytes] = field(repr=False)
    signature: bytes
    possession: bytes

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_id(self.client_id)
        _check_bytes(self.commitment, HASH_BYTES, "a commitment", self.client_id)
        _check_bytes(self.own_commitments, COMMITMENTS_BYTES, "a pair of commitments", self.client_id)
        _check_sealed(self.shares, self.pair_secrets, self.client_id)
        _check_bytes(self.signature, SIGNATURE_BYTES, "a signature", self.client_id)
        _check_bytes(self.possession, POSSESSION_BYTES, "the proofs of possession", self.client_id)

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest(
            "key-shares",
            self.client_id,
            self.commitment,
            self.own_commitments,
            _pack_mapping(self.shares),
            _pack_mapping(self.pair_secrets),
            self.signature,
            self.possession,
        )


@dataclass(frozen=True, slots=True)
class Dealing:
    """R1, server to a client that asks: what a neighbour signed about its shares (`dealing`).

    `commitment` is the one to b (32 bytes), `signature` the dealer's (64 bytes), `possession` its proofs that it has
    the private halves of its keys (128 bytes). `proof` holds the hashes (32 bytes each) and the way from this client's
    leaf to the root.
    """

    client_id: int
    commitment: bytes
    signature: bytes
    possession: bytes
    proof: tuple[bytes, ...]

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_id(self.client_id)
        _check_bytes(self.commitment, HASH_BYTES, "a commitment")
        _check_bytes(self.signature, SIGNATURE_BYTES, "a signature")
        _check_bytes(self.possession, POSSESSION_BYTES, "the proofs of possession")
        if not isinstance(self.proof, tuple):
            raise ProtocolViolation(Check.MALFORMED, "a proof is a tuple of hashes")
        for value in self.proof:
            _check_bytes(value, HASH_BYTES, "a hash")

    def digest(self) -> bytes:
        """32 bytes."""
        proof = b"".join(self.proof)
        return _digest("dealing", self.client_id, self.commitment, self.signature, self.possession, proof)


@dataclass(frozen=True, slots=True)
class ShareDelivery:
    """R1, server to one client: U2, and by sender the parcels and pair secrets that its neighbours in U2 sealed."""

    sharers: tuple[int, ...]
    shares: Mapping[int, bytes] = field(repr=False)
    pair_secrets: Mapping[int, bytes] = field(repr=False)

    def check(self) -> None:
        """Raise ProtocolViolation unless ids and sizes are right."""
        _check_ids(self.sharers)
        _check_sealed(self.shares, self.pair_secrets, None)

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("delivery", pack_ids(self.sharers), _pack_mapping(self.shares), _pack_mapping(self.pair_secrets))


@dataclass(frozen=True, slots=True)
class Survivors:
    """R3, server to clients: U3, those whose masked vector is in the sum; with norm proofs the coin, 32 bytes."""

    survivors: tuple[int, ...]
    coin: bytes = b""

    def check(self) -> None:
        """Raise ProtocolViolation unless the ids are distinct, ascending and in range, and the coin has its size."""
        _check_ids(self.survivors)
        _check_sizes(self.coin, _OPTIONAL_HASH, "a coin", None)

    def digest(self) -> bytes:
        """32 bytes."""
        return _digest("survivors", pack_ids(self.survivors), *([self.coin] if self.coin else []))


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
    """R4, client to server: 33-byte shares of b for survivors, of r for sharers that did not survive.

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


_BAD_ID = "a client id is a whole number between 1 and 2^63 - 1"


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """R2: a masked vector as the round knows it, by sender and SHA-256; the vector itself never comes here.

    With norm proofs there is a commitment to the pads in it, 32 bytes.
    """

    client_id: int
    sha256: bytes
    pads: bytes = b""

    def check(self) -> None:
        """Raise ProtocolViolation unless id and sizes are right."""
        _check_id(self.client_id)
        _check_bytes(self.sha256, HASH_BYTES, "a digest", self.client_id)
        _check_sizes(self.pads, _OPTIONAL_HASH, "a commitment", self.client_id)

    def digest(self) -> bytes:
        """32 bytes."""
        return input_digest(self.client_id, self.sha256 + self.pads)


def input_digest(client_id: int, digest: bytes) -> bytes:
    """R2: a masked vector is known to the round by its own digest, which this ties to the sender; 32 bytes."""
    return _digest("input", client_id, digest)


def _digest(kind: str, *fields: Field) -> bytes:
    return tagged_hash(Usage.MESSAGE, kind, *fields)


def _pack_mapping(entries: Mapping[int, bytes]) -> bytes:
    """Entries in ascending order of the ids: eight bytes of id, eight of length, the value."""
    ids = sorted(entries)
    values = [entries[client] for client in ids]
    if len(sizes := set(map(len, values))) != 1:
        return b"".join([struct.pack(">QQ", client, len(entries[client])) + entries[client] for client in ids])
    # Thousands of signatures go to each of thousands of clients: columns, not rows.
    size = sizes.pop()
    columns = (pack_ids(ids), len(ids) * size.to_bytes(8, "big"), b"".join(values))
    rows = [np.frombuffer(column, np.uint8).reshape(len(ids), -1) for column in columns]
    return np.concatenate(rows, axis=1).tobytes()


def _check_id(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ID:
        raise ProtocolViolation(Check.MALFORMED, _BAD_ID)


def _check_ids(ids: object) -> None:
    if not isinstance(ids, tuple) or not 1 <= len(ids) <= MAX_COHORT:
        raise ProtocolViolation(Check.MALFORMED, f"a set of clients is a tuple of 1 to {MAX_COHORT} ids")
    # A cohort of 10,000 is checked by each of its clients: built-ins only.
    if set(map(type, ids)) - {int} or not 1 <= min(ids) <= max(ids) <= MAX_ID:
        raise ProtocolViolation(Check.MALFORMED, _BAD_ID)
    if len(set(ids)) != len(ids):
        raise ProtocolViolation(Check.DUPLICATE_ID, "a set of clients names one of them twice")
    if list(ids) != sorted(ids):
        raise ProtocolViolation(Check.MALFORMED, "a set of clients is in ascending order")


def _check_bytes(value: object, size: int, name: str, peer: int | None = None) -> None:
    if not isinstance(value, bytes) or len(value) != size:
        raise ProtocolViolation(Check.MALFORMED, f"{name} has {size} bytes", peer=peer)


def _check_sizes(value: object, sizes: frozenset[int], name: str, peer: int | None) -> None:
    if not isinstance(value, bytes) or len(value) not in sizes:
        known = " or ".join(str(size) for size in sorted(sizes))
        raise ProtocolViolation(Check.MALFORMED, f"{name} has {known} bytes", peer=peer)


def _check_sealed(shares: object, pair_secrets: object, peer: int | None) -> None:
    for entries, size, name in (
        (shares, PARCEL_BYTES, "a parcel of shares"),
        (pair_secrets, SEALED_SECRET_BYTES, "a sealed secret"),
    ):
        sizes = frozenset(size + ciphertext for ciphertext in CIPHERTEXT_SIZES)
        for value in _entries(entries, name, peer).values():
            _check_sizes(value, sizes, name, peer)


def _check_mapping(entries: object, size: int, name: str, peer: int | None = None) -> None:
    for value in _entries(entries, name, peer).values():
        _check_bytes(value, size, name, peer)


def _entries(entries: object, name: str, peer: int | None) -> Mapping[int, object]:
    if not isinstance(entries, Mapping) or len(entries) > MAX_COHORT:
        raise ProtocolViolation(Check.MALFORMED, f"expected at most {MAX_COHORT} entries of id and {name}", peer=peer)
    for client_id in entries:
        _check_id(client_id)
    return entries
