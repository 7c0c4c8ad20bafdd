"""Between wire messages (JSON) and the protocol's own (fedcore.secagg)."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
    KeyShares,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.wire import (
    AdvertisementIn,
    AdvertisementOut,
    CohortOut,
    ConsistencyIn,
    DeliveryOut,
    KeySharesIn,
    SignaturesOut,
    SurvivorsOut,
    UnmaskIn,
    pack_members,
)


def advertisement(client: int, body: AdvertisementIn) -> Advertisement:
    """R0, in."""
    return Advertisement(
        client_id=client,
        c_public=body.c_public,
        s_public=body.s_public,
        signature=body.signature,
    )


def cohort_out(message: AdvertisedCohort, cohort: Sequence[int]) -> CohortOut:
    """U1 for one client, out; `cohort` is the task's."""
    return CohortOut(
        advertised=pack_members(message.ids, cohort),
        members=[
            AdvertisementOut(
                client_id=member.client_id,
                c_public=member.c_public,
                s_public=member.s_public,
                signature=member.signature,
            )
            for member in message.members
        ],
        proof=list(message.proof),
    )


def key_shares(client: int, body: KeySharesIn) -> KeyShares:
    """R1, in."""
    return KeyShares(client_id=client, commitment=body.commitment, shares=body.shares, pair_secrets=body.pair_secrets)


def delivery_out(delivery: ShareDelivery, cohort: Sequence[int]) -> DeliveryOut:
    """U2 and what was sealed for one client, out."""
    return DeliveryOut(
        sharers=pack_members(delivery.sharers, cohort),
        shares=dict(delivery.shares),
        pair_secrets=dict(delivery.pair_secrets),
    )


def survivors_out(survivors: Survivors, cohort: Sequence[int]) -> SurvivorsOut:
    """U3, out."""
    return SurvivorsOut(survivors=pack_members(survivors.survivors, cohort))


def consistency(client: int, body: ConsistencyIn) -> ConsistencySignature:
    """R3, in."""
    return ConsistencySignature(client_id=client, signature=body.signature)


def signatures_out(signatures: SignatureSet) -> SignaturesOut:
    """The signatures over U3, out."""
    return SignaturesOut(signatures=dict(signatures.signatures))


def unmask_shares(client: int, body: UnmaskIn) -> UnmaskShares:
    """R4, in."""
    return UnmaskShares(client_id=client, self_shares=body.self_shares, key_shares=body.key_shares)
