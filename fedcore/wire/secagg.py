"""The messages of the protocol's rounds R0 to R4 (docs/protocol.md) between client and server, as pydantic models.

`fedcore.wire.secagg_codec` makes the values of `fedcore.secagg` of them, and them of those. Like all control messages
they refuse unknown keys, and their sizes are bounded here, before anything is decoded further.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedcore.wire.base import MAX_COHORT, Bytes, ClientId, Key32, Message, Signature64, optional

Sealed = Annotated[Bytes, Field(min_length=16, max_length=4096)]
PublicKey = Annotated[Bytes, Field(min_length=32, max_length=4096)]
Possession = Annotated[Bytes, Field(min_length=128, max_length=128)]
"""Proofs that a client has the private halves of its keys c and s."""
Members = Annotated[Bytes, Field(max_length=MAX_COHORT // 8)]
"""A subset of a task's cohort: bit i, from the lowest bit of the first byte on, stands for the client at index i."""


class AdvertisementIn(Message):
    """R0: fresh public keys, signed."""

    c_public: PublicKey
    s_public: PublicKey
    signature: Signature64


class AdvertisementOut(AdvertisementIn):
    """An advertisement with the client that signed it."""

    client_id: ClientId


class CohortOut(Message):
    """U1 to one client: who advertised, the keys of the client and its neighbours, and the proof of the others'."""

    advertised: Members
    members: list[AdvertisementOut]
    proof: list[Key32]


class KeySharesIn(Message):
    """R1: commitments to the self mask seed and to one's own shares, and what is dealt, in the receivers' order.

    That is the ascending one. `shares` are the parcels for every neighbour, `pair_secrets` for those for whom this
    client chooses; all of one kind have the same length, so nothing stands between them. `signature` covers all of it.
    """

    commitment: Key32
    own_commitments: Key32
    shares: Bytes
    pair_secrets: Bytes
    signature: Signature64
    possession: Possession


class DeliveryOut(Message):
    """U2, and the parcels and pair secrets sealed for this client, by sender."""

    sharers: Members
    shares: dict[int, Sealed]
    pair_secrets: dict[int, Sealed]


class DealingOut(Message):
    """What a neighbour signed about its shares, and the hashes that lead from this client's part to the signed root."""

    commitment: Key32
    signature: Signature64
    possession: Possession
    proof: list[Key32] = Field(max_length=64)


class SurvivorsOut(Message):
    """U3, and with norm proofs the coin."""

    survivors: Members
    coin: Key32 | None = optional()


class ConsistencyIn(Message):
    """R3: the signature over (ctx, L1, U2, U3), and with norm proofs over the coin, with the proof."""

    signature: Signature64
    proof: Annotated[Bytes, Field(max_length=1 << 17)] | None = optional()


class SignaturesOut(Message):
    """The consistency signatures, by client; opens R4."""

    signatures: dict[int, Signature64]


class UnmaskIn(Message):
    """R4: shares of the self mask seed for survivors, of the mask root for the dropped, in ascending order of those.

    Each has 33 bytes; of whom a client holds shares follows from the graph.
    """

    self_shares: Bytes
    key_shares: Bytes
