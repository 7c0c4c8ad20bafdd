"""Lies about the graph: other neighbours, false proofs, one cohort for this client and another for that."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from fedcore.secagg import SignatureSet, Survivors
from fedcore.secagg.crypto.keys import sign
from fedcore.secagg.crypto.schedule import consistency_statement


@pytest.fixture
def rig(make_rig):
    return make_rig.ring().until("share")


def _strangers(rig, client_id):
    """Those of the cohort who are no neighbours of the client."""
    return [i for i in rig.ids if i != client_id and i not in rig.graph().neighbours(client_id)]


# Other neighbours


def test_a_stranger_in_place_of_a_neighbour(rig):
    """A true proof for keys that are truly signed, of clients whom the server would rather have there."""
    session, view = rig.clients[1], rig.view(rig.advertisements())
    neighbours = view.graph.neighbours(1)
    assert view.cohort(1) == rig.server.advertised(1)
    for out, stranger in itertools.product(neighbours[:2], _strangers(rig, 1)[:2]):
        shown = view.showing({1, stranger, *neighbours} - {out})
        assert shown.root() == view.tree.root
        rig.refused("wrong-neighbours", session, lambda shown=shown: session.share_keys(shown))
    rig.go_on("share")


def test_a_neighbour_too_few_or_too_many(rig):
    session, view = rig.clients[1], rig.view(rig.advertisements())
    neighbours = view.graph.neighbours(1)
    for shown in ((1, *neighbours[1:]), (1, *neighbours, _strangers(rig, 1)[0]), (1,), rig.ids):
        cohort = view.showing(shown)
        assert cohort.root() == view.tree.root
        rig.refused("wrong-neighbours", session, lambda cohort=cohort: session.share_keys(cohort))
    rig.go_on("share")


def test_the_cohort_of_another_client(rig):
    """Client 1 is its own neighbour nowhere, so it cannot be given what belongs to one of its neighbours."""
    neighbour = rig.graph().neighbours(1)[0]
    shown = rig.server.advertised(neighbour)
    rig.refused("wrong-neighbours", rig.clients[1], lambda: rig.clients[1].share_keys(shown))
    rig.go_on("share")


def test_a_smaller_cohort_is_another_ring(rig):
    """U1 without a client far away, with a true proof; but the neighbours are still those of the larger ring."""
    honest, missing = rig.advertisements(), _strangers(rig, 1)[0]
    smaller = rig.view({i: entry for i, entry in honest.items() if i != missing})
    shown = smaller.showing((1, *rig.graph().neighbours(1)))
    rig.refused("wrong-neighbours", rig.clients[1], lambda: rig.clients[1].share_keys(shown))
    rig.go_on("share")


# False proofs and leaves


def test_a_neighbours_key_exchanged_under_the_honest_proof(rig):
    """The proof then leads to another root, and so to another order of the ring."""
    session, honest = rig.clients[1], rig.server.advertised(1)
    place = next(k for k, member in enumerate(honest.members) if member.client_id != 1)
    forged = dataclasses.replace(honest.members[place], s_public=rig.keys("the server's own"))
    shown = dataclasses.replace(honest, members=(*honest.members[:place], forged, *honest.members[place + 1 :]))
    assert shown.root() != honest.root()
    rig.refused("wrong-neighbours", session, lambda: session.share_keys(shown))
    rig.go_on("share")


def test_a_hash_of_the_proof_altered_or_moved(rig):
    session, honest = rig.clients[1], rig.server.advertised(1)
    assert len(honest.proof) > 1
    proofs = [(bytes(32), *honest.proof[1:]), (*honest.proof[:-1], honest.proof[0]), honest.proof[::-1]]
    for proof in proofs:
        shown = dataclasses.replace(honest, proof=proof)
        rig.refused("wrong-neighbours", session, lambda shown=shown: session.share_keys(shown))
    rig.go_on("share")


def test_a_proof_too_short_or_too_long(rig):
    session, honest = rig.clients[1], rig.server.advertised(1)
    for proof in (honest.proof[:-1], (*honest.proof, bytes(32)), (), (*honest.proof[:-1], bytes(31))):
        shown = dataclasses.replace(honest, proof=proof)
        rig.refused("malformed", session, lambda shown=shown: session.share_keys(shown))
    rig.go_on("share")


# One L1 here, another there


def _split_view(rig):
    """A cohort with one forged key, a victim that does not see it, and who is its neighbour there and in truth.

    Only the neighbours of the forged client would find out that it never signed that key.
    """
    honest = rig.advertisements()
    for forged, victim in itertools.permutations(rig.ids, 2):
        entry = dataclasses.replace(honest[forged], s_public=rig.keys(f"server {forged}"))
        view = rig.view(honest | {forged: entry})
        common = set(view.graph.neighbours(victim)) & set(rig.graph().neighbours(victim))
        if forged not in view.graph.neighbours(victim) and common - {forged}:
            return view, victim, common - {forged}
    raise AssertionError("no such split")


def test_clients_that_were_shown_different_cohorts_cannot_open_each_others_shares(rig):
    view, victim, common = _split_view(rig)
    message = rig.clients[victim].share_keys(view.cohort(victim))
    reader = min(common)
    assert view.graph.chooses(victim, reader) == (reader in message.pair_secrets)
    for i in rig.ids:
        if i != victim:
            rig.server.receive_shares(rig.clients[i].share_keys(rig.server.advertised(i)))
    rig.server.close_stage()
    honest = rig.server.delivery(reader)
    # The server passes the victim's shares on, and the pair secret where the reader expects one.
    pair_secrets = dict(honest.pair_secrets)
    if rig.graph().chooses(victim, reader):
        pair_secrets[victim] = message.pair_secrets.get(reader, bytes(48))
    told = dataclasses.replace(
        honest,
        sharers=rig.ids,
        shares={**honest.shares, victim: message.shares[reader]},
        pair_secrets=pair_secrets,
    )
    session = rig.clients[reader]
    violation = rig.refused("share-unsealing", session, lambda: session.receive_shares(told))
    assert violation.peer == victim
    rig.go_on("deliver")


def test_signatures_from_another_cohort_do_not_count(rig):
    """The sets agree, the keys behind them do not: the server may not count one half's signatures for the other."""
    view, _, _ = _split_view(rig)
    for step in ("share", "deliver", "upload", "sign"):
        getattr(rig, step)()
    session, honest = rig.clients[1], dict(rig.server.signatures().signatures)
    statement = consistency_statement(view.transcript, rig.ids, rig.ids)
    foreign = {i: sign(rig.identities[i], statement) for i in rig.ids}
    assert len(honest) == rig.parameters.quorum
    for others in (rig.ids, rig.ids[:1]):
        mixed = SignatureSet(honest | {i: foreign[i] for i in others})
        rig.refused("inconsistent-survivors", session, lambda mixed=mixed: session.unmask(mixed))
    rig.go_on("unmask")


# The sets are the whole cohort's, not the neighbourhood's


def test_the_quorum_counts_the_cohort_and_not_the_neighbours(rig):
    """Eight signatures are more than the threshold of five, and all seven holders of one secret are among them."""
    for step in ("share", "deliver", "upload"):
        getattr(rig, step)()
    near = {1, *rig.graph().neighbours(1)}
    signers = sorted(near) + [i for i in rig.ids if i not in near][:2]
    signatures = {i: rig.clients[i].sign_survivors(Survivors(rig.ids)).signature for i in signers}
    session = rig.clients[1]
    short = SignatureSet({i: signatures[i] for i in signers[:8]})
    assert rig.parameters.threshold < len(short.signatures) == rig.parameters.quorum - 1
    rig.refused("inconsistent-survivors", session, lambda: session.unmask(short))
    assert session.unmask(SignatureSet(signatures)).client_id == 1


def test_shares_are_released_for_the_neighbourhood_only(rig):
    lost = rig.graph().neighbours(1)[0]
    for step in ("share", "deliver"):
        getattr(rig, step)()
    rig.upload(set(rig.ids) - {lost})
    rig.sign()
    released = rig.clients[1].unmask(rig.server.signatures())
    assert set(released.self_shares) == {1, *rig.graph().neighbours(1)} - {lost}
    assert set(released.key_shares) == {lost}
