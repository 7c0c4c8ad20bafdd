"""Between wire messages (JSON) and the protocol's own (fedcore.secagg)."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.errors import ProtocolViolation
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    Check,
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
    split_entries,
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


def key_shares(client: int, body: KeySharesIn, receivers: Sequence[int], chosen: Sequence[int]) -> KeyShares:
    """R1, in."""
    return KeyShares(
        client_id=client,
        commitment=body.commitment,
        shares=_entries(body.shares, receivers),
        pair_secrets=_entries(body.pair_secrets, chosen),
    )


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


def unmask_shares(client: int, body: UnmaskIn, survivors: Sequence[int], lost: Sequence[int]) -> UnmaskShares:
    """R4, in."""
    return UnmaskShares(
        client_id=client,
        self_shares=_entries(body.self_shares, survivors),
        key_shares=_entries(body.key_shares, lost),
    )


def _entries(joined: bytes, clients: Sequence[int]) -> dict[int, bytes]:
    try:
        return split_entries(joined, clients)
    except ValueError as error:
        raise ProtocolViolation(Check.MALFORMED, str(error)) from None
