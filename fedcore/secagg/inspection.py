"""What a client checks before it answers: pure functions that return nothing or raise ProtocolViolation.

The names are explained in `checks`. They are apart from the session so that its steps read as the protocol does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fedcore.errors import ProtocolViolation
from fedcore.secagg import dealing
from fedcore.secagg.checks import Check
from fedcore.secagg.complaint import Case
from fedcore.secagg.crypto.agreement import Agreement
from fedcore.secagg.crypto.keys import Verify
from fedcore.secagg.crypto.schedule import advertisement_statement
from fedcore.secagg.graph import Graph
from fedcore.secagg.messages import (
    PARCEL_BYTES,
    SEALED_SECRET_BYTES,
    AdvertisedCohort,
    Advertisement,
    Dealing,
    ShareDelivery,
)
from fedcore.secagg.parameters import RoundParameters


def check_proposal(
    parameters: RoundParameters,
    client_id: int,
    roster: Mapping[int, bytes],
    min_cohort: int,
    min_threshold: int,
) -> None:
    """Before R0: the round as proposed respects the client's policy and asks only clients of the roster."""
    if client_id not in parameters.cohort:
        raise ProtocolViolation(Check.OWN_ID_MISSING, f"client {client_id} is not in the cohort")
    _check_on_roster(parameters.cohort, roster)
    # Not n: once a client has sent its vector, the others decide with how many survivors the round goes on, and all
    # that binds them is the quorum. A client that wants more would refuse to sign, and be in the sum anyway.
    # Less those that may collude with the server: it can take their updates off the sum.
    if (honest := parameters.quorum - parameters.corrupt) < min_cohort:
        raise ProtocolViolation(
            Check.COHORT_BELOW_MINIMUM,
            f"the round continues with {honest} clients that do not collude, this client demands {min_cohort}",
        )
    if parameters.threshold < min_threshold:
        raise ProtocolViolation(
            Check.THRESHOLD_BELOW_MINIMUM,
            f"the round's threshold is {parameters.threshold}, this client demands {min_threshold}",
        )


def check_listed(ids: tuple[int, ...], cohort: Collection[int], floor: int) -> None:
    """R1: U1 is large enough and within the cohort; only of such a list is there a graph to ask about."""
    _check_size(len(ids), floor, "advertised keys")
    known = set(cohort)
    if not known.issuperset(ids):
        strangers = sorted(set(ids) - known)
        raise ProtocolViolation(
            Check.OFF_ROSTER, f"client {strangers[0]} was not asked in this round", peer=strangers[0]
        )


def check_cohort(
    message: AdvertisedCohort,
    *,
    own: Advertisement,
    graph: Graph,
    parameters: RoundParameters,
    context: bytes,
    roster: Mapping[int, bytes],
    verify: Verify,
) -> None:
    """R1: one's own keys are in U1, and each neighbour signed its own for this round."""
    entries = {member.client_id: member for member in message.members}
    if entries.get(own.client_id) != own:
        raise ProtocolViolation(
            Check.OWN_ENTRY_ALTERED, "the cohort does not list the keys that this client advertised"
        )
    if set(entries) != {own.client_id, *graph.neighbours(own.client_id)}:
        raise ProtocolViolation(
            Check.WRONG_NEIGHBOURS, "the cohort shows the keys of other clients than this client's neighbours"
        )
    for member in message.members:
        check_advertisement(member, parameters, context, roster, verify)
    publics = [key for member in message.members for key in (member.c_public, member.s_public)]
    if len(set(publics)) != len(publics):
        raise ProtocolViolation(Check.DUPLICATE_KEY, "the cohort lists one public key twice")


def check_advertisement(
    member: Advertisement, parameters: RoundParameters, context: bytes, roster: Mapping[int, bytes], verify: Verify
) -> None:
    """Keys signed by the roster's identity for this context, and usable for agreement. The server asks the same.

    The caller has seen to it that the client is in the cohort, and so on the roster.
    """
    client_id = member.client_id
    signed = advertisement_statement(context, client_id, member.c_public, member.s_public)
    if not verify(roster[client_id], member.signature, signed):
        raise ProtocolViolation(
            Check.KEY_SUBSTITUTION,
            f"client {client_id} did not sign these keys for this round, model and parameters",
            peer=client_id,
        )
    for public in (member.c_public, member.s_public):
        parameters.agreement.check_public(public, client_id)


def check_sealed(
    shares: Mapping[int, bytes], pair_secrets: Mapping[int, bytes], agreement: Agreement, sender: int | None = None
) -> None:
    """R1: what was sealed holds a ciphertext of the round's agreement; a message alone cannot know which."""
    for sealed, size in ((shares, PARCEL_BYTES), (pair_secrets, SEALED_SECRET_BYTES)):
        expected = agreement.ciphertext_bytes + size
        for client_id, value in sealed.items():
            if len(value) != expected:
                peer = client_id if sender is None else sender
                raise ProtocolViolation(
                    Check.MALFORMED, f"client {peer} sealed {len(value)} bytes where {expected} belong", peer=peer
                )


def check_delivery(message: ShareDelivery, client_id: int, graph: Graph, agreement: Agreement) -> None:
    """R1: what is delivered comes from each neighbour among the sharers, and from nobody else."""
    check_sealed(message.shares, message.pair_secrets, agreement)
    senders = set(graph.neighbours(client_id)) & set(message.sharers)
    choosers = {sender for sender in senders if graph.chooses(sender, client_id)}
    if set(message.shares) != senders or set(message.pair_secrets) != choosers:
        raise ProtocolViolation(
            Check.WRONG_RECIPIENTS,
            "the delivery must hold what each neighbour among the sharers sealed for this client",
        )


def check_dealing(evidence: Dealing, case: Case, graph: Graph, roster: Mapping[int, bytes], verify: Verify) -> None:
    """R1: the accused has signed for this very round and cohort what was delivered in its name, and has its keys.

    A complaint discloses what both agree on; with another client's key that would be others' secrets.
    """
    holder, pair_secret = case.complainant.client_id, case.pair_secret or b""
    root = dealing.dealt_root(evidence, graph, holder, case.parcel, pair_secret)
    signed = dealing.dealing_statement(case.transcript, evidence.client_id, evidence.commitment, root)
    if not verify(roster[evidence.client_id], evidence.signature, signed):
        raise ProtocolViolation(
            Check.UNSIGNED_DEALING,
            f"the server has no signature of client {evidence.client_id} for what it delivered in that one's name",
        )
    if not dealing.is_possessed(case.accused, evidence.possession, case.transcript.context):
        raise ProtocolViolation(
            Check.UNSIGNED_DEALING,
            f"the server has no proof that client {evidence.client_id} can use the keys that it advertised",
        )


def check_sharers(sharers: tuple[int, ...], client_id: int, advertised: Collection[int], floor: int) -> None:
    """R1: U2 is large enough, within U1, and holds this client."""
    if not set(advertised).issuperset(sharers):
        raise ProtocolViolation(Check.SHARERS_NOT_ADVERTISED, "a sharer is named whose keys were never advertised")
    if client_id not in sharers:
        raise ProtocolViolation(Check.OWN_ID_MISSING, f"client {client_id} shared its keys but is left out")
    _check_size(len(sharers), floor, "shared their keys")


def check_holders(sharers: Collection[int], client_id: int, graph: Graph, threshold: int) -> None:
    """R1: as many sharers as rebuild a secret hold shares of this client's, itself among them.

    On a sparse graph a set of sharers can be large and hold none of a client's neighbours. Its vector would then be
    hidden by the self mask alone, and its neighbours, who were shown other sharers, would release that: they cannot
    know. As 2t is more than the holders and the corrupt among them, an honest neighbour is in it and releases, too, and
    the mask that it shares with this client stays.
    """
    holders = {client_id, *graph.neighbours(client_id)}.intersection(sharers)
    if len(holders) < threshold:
        raise ProtocolViolation(
            Check.HOLDERS_BELOW_THRESHOLD,
            f"{len(holders)} of the sharers hold shares of this client's secrets, {threshold} must",
        )


def check_survivors(survivors: tuple[int, ...], client_id: int, sharers: Collection[int], floor: int) -> None:
    """R3: U3 is large enough, within U2, and holds this client."""
    if not set(sharers).issuperset(survivors):
        raise ProtocolViolation(Check.SURVIVORS_NOT_SHARERS, "a survivor is named that never shared its keys")
    if client_id not in survivors:
        raise ProtocolViolation(Check.OWN_ID_MISSING, f"client {client_id} sent its vector but is left out")
    _check_size(len(survivors), floor, "survived")


def check_signers(signers: Iterable[int], survivors: Collection[int], roster: Mapping[int, bytes]) -> None:
    """R4: every signer is on the roster and among the survivors; only they can have seen U3."""
    _check_on_roster(signers, roster)
    known = frozenset(survivors)
    for signer in signers:
        if signer not in known:
            raise ProtocolViolation(
                Check.SIGNER_NOT_SURVIVOR, f"client {signer} signed but is no survivor", peer=signer
            )


def _check_on_roster(ids: Iterable[int], roster: Mapping[int, bytes]) -> None:
    for client_id in ids:
        if client_id not in roster:
            raise ProtocolViolation(Check.OFF_ROSTER, f"client {client_id} is not on the roster", peer=client_id)


def _check_size(present: int, floor: int, what: str) -> None:
    if present < floor:
        raise ProtocolViolation(
            Check.COHORT_BELOW_MINIMUM,
            f"{present} clients {what}, this client continues with {floor} or more",
        )
