"""The protocol's messages (fedcore.secagg) as wire messages (fedcore.wire.secagg) and back, for both sides.

On the wire a set of clients is a set of bits, and what belongs to clients whom both sides know stands in their order
without their numbers. What a peer sent raises ProtocolViolation ("malformed") where it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedcore.errors import ProtocolViolation
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    Check,
    Complaint,
    ComplaintSubject,
    ConsistencySignature,
    Dealing,
    KeyShares,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.wire.secagg import (
    AdvertisementIn,
    AdvertisementOut,
    CohortOut,
    ConsistencyIn,
    DealingOut,
    DeliveryOut,
    KeySharesIn,
    SignaturesOut,
    SurvivorsOut,
    UnmaskIn,
)
from fedcore.wire.uploads import ComplaintIn


def advertisement_to_wire(message: Advertisement) -> AdvertisementIn:
    """R0, of a client."""
    return AdvertisementIn(c_public=message.c_public, s_public=message.s_public, signature=message.signature)


def advertisement_from_wire(client: int, body: AdvertisementIn) -> Advertisement:
    """R0, of the client that signed the request."""
    return Advertisement(client, body.c_public, body.s_public, body.signature)


def cohort_to_wire(message: AdvertisedCohort, cohort: Sequence[int]) -> CohortOut:
    """U1 for one client; `cohort` is the task's, here and below."""
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


def cohort_from_wire(body: CohortOut, cohort: Sequence[int]) -> AdvertisedCohort:
    """U1, as the server shows it."""
    members = tuple(advertisement_from_wire(member.client_id, member) for member in body.members)
    return AdvertisedCohort(unpack_members(body.advertised, cohort), members, tuple(body.proof))


def key_shares_to_wire(message: KeyShares) -> KeySharesIn:
    """R1, of a client."""
    return KeySharesIn(
        commitment=message.commitment,
        own_commitments=message.own_commitments,
        shares=_joined(message.shares),
        pair_secrets=_joined(message.pair_secrets),
        signature=message.signature,
        possession=message.possession,
    )


def key_shares_from_wire(client: int, body: KeySharesIn, receivers: Sequence[int], chosen: Sequence[int]) -> KeyShares:
    """R1; the shares are for `receivers`, the pair secrets for `chosen`."""
    return KeyShares(
        client,
        body.commitment,
        body.own_commitments,
        _split(body.shares, receivers),
        _split(body.pair_secrets, chosen),
        body.signature,
        body.possession,
    )


def delivery_to_wire(delivery: ShareDelivery, cohort: Sequence[int]) -> DeliveryOut:
    """U2 and what was sealed for one client."""
    return DeliveryOut(
        sharers=pack_members(delivery.sharers, cohort),
        shares=dict(delivery.shares),
        pair_secrets=dict(delivery.pair_secrets),
    )


def delivery_from_wire(body: DeliveryOut, cohort: Sequence[int]) -> ShareDelivery:
    """U2 and what was sealed for this client."""
    return ShareDelivery(unpack_members(body.sharers, cohort), body.shares, body.pair_secrets)


def dealing_to_wire(dealing: Dealing) -> DealingOut:
    """What a neighbour signed about its shares."""
    return DealingOut(
        commitment=dealing.commitment,
        signature=dealing.signature,
        possession=dealing.possession,
        proof=list(dealing.proof),
    )


def dealing_from_wire(dealer: int, body: DealingOut) -> Dealing:
    """What `dealer` signed, as the server shows it."""
    return Dealing(dealer, body.commitment, body.signature, body.possession, tuple(body.proof))


def complaint_to_wire(complaint: Complaint) -> ComplaintIn:
    """A complaint of a client."""
    return ComplaintIn(
        accused=complaint.accused,
        part=complaint.part.value,
        shared=complaint.shared,
        proof=complaint.proof,
        mlkem_seed=complaint.mlkem_seed,
    )


def complaint_from_wire(client: int, body: ComplaintIn) -> Complaint:
    """A complaint of the client that signed the request."""
    return Complaint(client, body.accused, ComplaintSubject(body.part), body.shared, body.proof, body.mlkem_seed)


def survivors_to_wire(survivors: Survivors, cohort: Sequence[int]) -> SurvivorsOut:
    """U3."""
    return SurvivorsOut(survivors=pack_members(survivors.survivors, cohort), coin=survivors.coin or None)


def survivors_from_wire(body: SurvivorsOut, cohort: Sequence[int]) -> Survivors:
    """U3, as the server shows it."""
    return Survivors(unpack_members(body.survivors, cohort), body.coin or b"")


def consistency_to_wire(message: ConsistencySignature, proof: bytes = b"") -> ConsistencyIn:
    """R3, of a client."""
    return ConsistencyIn(signature=message.signature, proof=proof or None)


def consistency_from_wire(client: int, body: ConsistencyIn) -> ConsistencySignature:
    """R3."""
    return ConsistencySignature(client, body.signature)


def signatures_to_wire(signatures: SignatureSet) -> SignaturesOut:
    """The signatures over U3."""
    return SignaturesOut(signatures=dict(signatures.signatures))


def signatures_from_wire(body: SignaturesOut) -> SignatureSet:
    """The signatures over U3, as the server shows them."""
    return SignatureSet(body.signatures)


def unmask_to_wire(message: UnmaskShares) -> UnmaskIn:
    """R4, of a client."""
    return UnmaskIn(self_shares=_joined(message.self_shares), key_shares=_joined(message.key_shares))


def unmask_from_wire(client: int, body: UnmaskIn, survivors: Sequence[int], lost: Sequence[int]) -> UnmaskShares:
    """R4; the client holds shares of the `survivors`' self masks and of the `lost` ones' roots."""
    return UnmaskShares(client, _split(body.self_shares, survivors), _split(body.key_shares, lost))


def pack_members(members: Iterable[int], cohort: Sequence[int]) -> bytes:
    """A subset of the cohort as `fedcore.wire.secagg.Members`; both in ascending order."""
    chosen = set(members)
    bits = sum(1 << index for index, client in enumerate(cohort) if client in chosen)
    return bits.to_bytes(-(-len(cohort) // 8), "little")


def unpack_members(packed: bytes, cohort: Sequence[int]) -> tuple[int, ...]:
    """The inverse of `pack_members`; refuses bits beyond the cohort, and another length."""
    bits = int.from_bytes(packed, "little")
    if len(packed) != -(-len(cohort) // 8) or bits >> len(cohort):
        raise ProtocolViolation(Check.MALFORMED, "a set of clients has one bit for each client of the cohort")
    return tuple(client for index, client in enumerate(cohort) if bits >> index & 1)


def _joined(entries: Mapping[int, bytes]) -> bytes:
    """The values in ascending order of the keys."""
    return b"".join(entries[client] for client in sorted(entries))


def _split(joined: bytes, clients: Sequence[int]) -> dict[int, bytes]:
    """The inverse of `_joined`; refuses anything but a value, of one length, for each of the clients."""
    size = len(joined) // len(clients) if clients else 0
    if size * len(clients) != len(joined) or (clients and not size):
        raise ProtocolViolation(
            Check.MALFORMED, f"expected entries of one length for {len(clients)} clients, not {len(joined)} bytes"
        )
    return {client: joined[i * size : (i + 1) * size] for i, client in enumerate(clients)}
