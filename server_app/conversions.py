"""Between wire messages (JSON) and the protocol's own (fedcore.secagg)."""

from __future__ import annotations

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
)


def advertisement(client: int, body: AdvertisementIn) -> Advertisement:
    """R0, in."""
    return Advertisement(
        client_id=client,
        c_public=body.c_public,
        s_public=body.s_public,
        signature=body.signature,
    )


def cohort_out(cohort: AdvertisedCohort) -> CohortOut:
    """U1, out."""
    return CohortOut(
        members=[
            AdvertisementOut(
                client_id=member.client_id,
                c_public=member.c_public,
                s_public=member.s_public,
                signature=member.signature,
            )
            for member in cohort.members
        ]
    )


def key_shares(client: int, body: KeySharesIn) -> KeyShares:
    """R1, in."""
    return KeyShares(client_id=client, commitment=body.commitment, sealed=body.sealed)


def delivery_out(delivery: ShareDelivery) -> DeliveryOut:
    """U2 and a client's shares, out."""
    return DeliveryOut(sharers=list(delivery.sharers), sealed=dict(delivery.sealed))


def survivors_out(survivors: Survivors) -> SurvivorsOut:
    """U3, out."""
    return SurvivorsOut(survivors=list(survivors.survivors))


def consistency(client: int, body: ConsistencyIn) -> ConsistencySignature:
    """R3, in."""
    return ConsistencySignature(client_id=client, signature=body.signature)


def signatures_out(signatures: SignatureSet) -> SignaturesOut:
    """The signatures over U3, out."""
    return SignaturesOut(signatures=dict(signatures.signatures))


def unmask_shares(client: int, body: UnmaskIn) -> UnmaskShares:
    """R4, in."""
    return UnmaskShares(client_id=client, self_shares=body.self_shares, key_shares=body.key_shares)
