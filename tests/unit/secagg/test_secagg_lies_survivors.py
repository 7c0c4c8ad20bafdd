"""Lies about who survived and what to release, repeated and late messages, and crashes."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle

import numpy as np
import pytest

from fedcore.errors import ConflictingMessage, ProtocolViolation, UsageError
from fedcore.secagg import ConsistencySignature, SignatureSet, Survivors, UnmaskShares
from fedcore.secagg.crypto.keys import sign
from fedcore.secagg.crypto.schedule import consistency_statement

# 2 different survivors for different clients


def test_two_views_of_the_survivors_unmask_nobody(any_rig):
    rig = any_rig().until("sign")
    quorum, last = rig.parameters.quorum, rig.ids[-1]
    everyone, others = Survivors(rig.ids), Survivors(rig.ids[:-1])
    deceived = rig.ids[: len(rig.ids) - quorum + 1]
    signatures = {}
    for i in rig.ids:
        view = others if i in deceived else everyone
        signatures[i] = rig.clients[i].sign_survivors(view).signature
    session = rig.clients[last]
    # All of them, of which one too few are over the same set; then these alone.
    true = {i: raw for i, raw in signatures.items() if i not in deceived}
    assert len(true) == quorum - 1
    for shown in (signatures, true):
        rig.refused("inconsistent-survivors", session, lambda shown=shown: session.unmask(SignatureSet(shown)))
    statement = consistency_statement(session._transcript, rig.ids, rig.ids)
    enough = {**true, 1: sign(rig.identities[1], statement)}
    assert session.unmask(SignatureSet(enough)).client_id == last


def test_signatures_of_other_sharers_or_another_cohort_do_not_count(any_rig):
    rig = any_rig().until("unmask")
    session = rig.clients[1]
    transcript = session._transcript
    elsewhere = dataclasses.replace(transcript, cohort=bytes(32))
    other_round = dataclasses.replace(transcript, context=bytes(32))
    for statement in (
        consistency_statement(transcript, rig.ids[:-1], rig.ids),
        consistency_statement(transcript, rig.ids, rig.ids[:-1]),
        consistency_statement(elsewhere, rig.ids, rig.ids),
        consistency_statement(other_round, rig.ids, rig.ids),
        consistency_statement(transcript, (), (*rig.ids, *rig.ids)),
    ):
        wrong = SignatureSet({i: sign(rig.identities[i], statement) for i in rig.ids})
        rig.refused("inconsistent-survivors", session, lambda wrong=wrong: session.unmask(wrong))
    rig.go_on("unmask")


def test_one_signature_does_not_count_for_many(any_rig):
    rig = any_rig().until("unmask")
    session, honest = rig.clients[1], rig.server.signatures().signatures
    one = dict.fromkeys(honest, honest[min(honest)])
    rig.refused("inconsistent-survivors", session, lambda: session.unmask(SignatureSet(one)))
    rig.refused("inconsistent-survivors", session, lambda: session.unmask(SignatureSet({})))
    rig.go_on("unmask")


def test_only_survivors_of_the_roster_may_have_signed(any_rig):
    rig = any_rig().until("upload")
    lost = rig.ids[-1]
    rig.upload(rig.ids[:-1])
    rig.sign()
    session, honest = rig.clients[1], dict(rig.server.signatures().signatures)
    for signer, check in ((lost, "signer-not-survivor"), (lost + 1, "off-roster")):
        more = SignatureSet({**honest, signer: honest[1]})
        violation = rig.refused(check, session, lambda more=more: session.unmask(more))
        assert violation.peer == signer
    rig.go_on("unmask")


def test_the_server_refuses_a_signature_over_other_survivors(any_rig):
    rig = any_rig().until("sign")
    statement = consistency_statement(rig.clients[1]._transcript, rig.ids, rig.ids[:-1])
    bad = ConsistencySignature(1, sign(rig.identities[1], statement))
    rig.refused("inconsistent-survivors", rig.server, lambda: rig.server.receive_consistency(bad))
    rig.go_on("sign")


def test_signatures_of_another_usage_do_not_count(make_rig):
    rig = make_rig(5).until("unmask")
    session = rig.clients[1]
    adverts = SignatureSet({i: entry.signature for i, entry in rig.advertisements().items()})
    rig.refused("inconsistent-survivors", session, lambda: session.unmask(adverts))
    rig.go_on("unmask")


# 5 a second request, with another U3


def test_no_second_cohort(any_rig):
    rig = any_rig().until("upload")
    session, advertisements = rig.clients[1], rig.advertisements()
    fewer = rig.view({i: entry for i, entry in advertisements.items() if i != rig.ids[-1]})
    other = rig.view(advertisements | {2: rig.signed(2, rig.keys("a"), rig.keys("b"))})
    for view in (fewer, other):
        rig.refused("second-cohort", session, lambda view=view: session.share_keys(view.cohort(1)))
    rig.go_on("upload")


def test_no_second_set_of_survivors(any_rig):
    rig = any_rig().until("sign")
    session = rig.clients[1]
    first = session.sign_survivors(Survivors(rig.ids))
    other = Survivors(rig.ids[:-1])
    rig.refused("second-survivor-set", session, lambda: session.sign_survivors(other))
    assert session.sign_survivors(Survivors(rig.ids)) == first
    rig.go_on("sign")
    rig.refused("second-survivor-set", session, lambda: session.sign_survivors(other))


def test_shares_are_released_once(any_rig):
    rig = any_rig().until("unmask")
    session, quorum = rig.clients[1], rig.server.signatures()
    released = session.unmask(quorum)
    statement = consistency_statement(rig.clients[2]._transcript, rig.ids, rig.ids)
    everybody = SignatureSet({i: sign(rig.identities[i], statement) for i in rig.ids})
    rig.refused("second-unmask", session, lambda: session.unmask(everybody))
    assert session.unmask(quorum) == released
    rig.go_on("unmask")


def test_a_client_never_releases_both_shares_of_one_client(any_rig):
    rig = any_rig().until("upload")
    lost = rig.ids[-1]
    rig.upload(rig.ids[:-1])
    rig.sign()
    graph = rig.graph()
    for i in rig.ids[:-1]:
        released = rig.clients[i].unmask(rig.server.signatures())
        assert set(released.self_shares) == {i, *graph.neighbours(i)} - {lost}
        assert set(released.key_shares) == {lost} & set(graph.neighbours(i))


def test_the_server_takes_no_shares_of_both_nor_too_many_or_too_few(any_rig):
    rig = any_rig().until("upload")
    lost = rig.graph().neighbours(1)[0]
    rig.upload(set(rig.ids) - {lost})
    rig.sign()
    honest = rig.clients[1].unmask(rig.server.signatures())
    share, other = bytes(33), rig.graph().neighbours(1)[1]
    both = UnmaskShares(1, honest.self_shares, {**honest.key_shares, other: share})
    rig.refused("shares-for-both", rig.server, lambda: rig.server.receive_unmask(both))
    fewer = {i: raw for i, raw in honest.self_shares.items() if i != other}
    for self_shares, key_shares in (
        (fewer, honest.key_shares),
        (fewer, {**honest.key_shares, other: share}),
        (honest.self_shares, {}),
        ({**honest.self_shares, lost: share}, {}),
        ({**honest.self_shares, rig.ids[-1] + 1: share}, honest.key_shares),
        ({i: share for i in rig.ids if i != lost} | {rig.ids[-1] + 1: share}, honest.key_shares),
        (honest.self_shares, {**honest.key_shares, rig.ids[-1] + 1: share}),
        (honest.self_shares, {rig.ids[-1] + 1: share}),
    ):
        bad = UnmaskShares(1, self_shares, key_shares)
        rig.refused("wrong-recipients", rig.server, lambda bad=bad: rig.server.receive_unmask(bad))
    rig.go_on("unmask")


def test_the_server_takes_no_shares_from_far_away(make_rig):
    """On a sparse graph, of a client whose shares the sender never held."""
    rig = make_rig.ring().until("unmask")
    honest = rig.clients[1].unmask(rig.server.signatures())
    stranger = next(i for i in rig.ids if i not in honest.self_shares)
    bad = UnmaskShares(1, {**honest.self_shares, stranger: bytes(33)}, {})
    rig.refused("wrong-recipients", rig.server, lambda: rig.server.receive_unmask(bad))
    rig.go_on("unmask")


# 7 a vector that arrives after its client was declared dropped


def test_late_input(any_rig):
    rig = any_rig().until("upload")
    lost = rig.ids[-1]
    late = rig.mask(lost)
    rig.server.drop(lost)
    rig.refused("late-input", rig.server, lambda: rig.server.receive_input(lost, late))
    rig.upload(rig.ids[:-1])
    rig.refused("late-input", rig.server, lambda: rig.server.receive_input(lost, late))
    rig.go_on("sign")
    rig.refused("late-input", rig.server, lambda: rig.server.receive_input(lost, late))
    rig.assert_sum(rig.ids[:-1])


def test_every_later_message_of_a_dropped_client(make_rig):
    rig = make_rig(7)
    server, refused = rig.server, rig.refused
    first = rig.clients[7].advertise()
    server.drop(7)
    refused("dropped-client", server, lambda: server.receive_advertisement(first))
    rig.advertise([1, 2, 3, 4, 5, 6])
    refused("dropped-client", server, lambda: server.receive_advertisement(first))
    refused("dropped-client", server, lambda: server.advertised(7))
    refused("dropped-client", server, lambda: server.receivers(7))
    shares = rig.clients[6].share_keys(server.advertised(6))
    rig.share([1, 2, 3, 4, 5])
    refused("dropped-client", server, lambda: server.receive_shares(shares))
    refused("dropped-client", server, lambda: server.delivery(6))
    rig.deliver()
    rig.upload()
    refused("dropped-client", server, lambda: server.owners(6))
    rig.go_on("sign")


def test_what_a_client_sent_before_it_was_dropped_is_forgotten(any_rig):
    rig = any_rig(13)
    first, second = rig.ids[-1], rig.ids[-2]
    for i in rig.ids:
        rig.server.receive_advertisement(rig.clients[i].advertise())
    rig.server.drop(first)
    rig.server.close_stage()
    rig.refused("dropped-client", rig.server, lambda: rig.server.advertised(first))
    for i in sorted(rig.server.expected):
        rig.server.receive_shares(rig.clients[i].share_keys(rig.server.advertised(i)))
    rig.server.drop(second)
    rig.server.close_stage()
    rig.refused("dropped-client", rig.server, lambda: rig.server.delivery(second))
    rig.go_on("deliver")
    rig.assert_sum(set(rig.ids) - {first, second})


# 9 two uploads of one client


def test_an_answer_again_is_one_answer_and_another_one_conflicts(make_rig, freeze):
    rig = make_rig(5).until("upload")
    digest = rig.mask(1)
    rig.server.receive_input(1, digest)
    before = freeze(rig.server)
    rig.server.receive_input(1, digest)
    with pytest.raises(ConflictingMessage):
        rig.server.receive_input(1, hashlib.sha256(b"another vector").digest())
    assert freeze(rig.server) == before
    rig.upload([2, 3, 4, 5])
    rig.server.receive_input(1, digest)
    with pytest.raises(ConflictingMessage):
        rig.server.receive_input(1, hashlib.sha256(b"another vector").digest())
    rig.go_on("sign")


def test_an_answer_repeated_is_the_same_although_encapsulation_is_random(any_rig):
    rig = any_rig().until("share")
    cohort = rig.server.advertised(1)
    first = rig.clients[1].share_keys(cohort)
    assert rig.clients[1].share_keys(cohort) is first
    rig.go_on("share")
    assert rig.clients[1].share_keys(cohort) is first


# 13 a crash and retry that would reuse a mask


def test_a_restarted_client_has_other_masks_and_is_no_longer_of_the_round(any_rig, drbg):
    rig = any_rig().until("share")
    reborn = rig.client(1, seed="after the crash", randomness=drbg("after the crash"))
    first, again = rig.advertisements()[1], reborn.advertise()
    assert {first.c_public, first.s_public}.isdisjoint({again.c_public, again.s_public})
    with pytest.raises(ConflictingMessage):
        rig.server.receive_advertisement(again)
    rig.refused("own-entry-altered", reborn, lambda: reborn.share_keys(rig.server.advertised(1)))
    rig.lose("share", [1])
    rig.assert_sum(rig.ids[1:])


@pytest.mark.parametrize("store", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_session_cannot_be_stored_or_copied(make_rig, store):
    rig = make_rig(3).until("upload")
    with pytest.raises(UsageError, match="dropout"):
        store(rig.clients[1])


def test_a_vector_masked_half_way_spoils_the_session(make_rig, monkeypatch):
    rig = make_rig(3).until("upload")

    def out_of_memory(*_args, **_keywords):
        raise MemoryError

    monkeypatch.setattr("fedcore.secagg.client.apply_masks", out_of_memory)
    with pytest.raises(MemoryError):
        rig.clients[1].mask(np.zeros(37, dtype=np.uint64))
    assert rig.clients[1].state == "abandoned"


def test_a_violation_that_a_client_caused_names_it(make_rig):
    rig = make_rig(3)
    forged = dataclasses.replace(rig.clients[2].advertise(), signature=bytes(64))
    with pytest.raises(ProtocolViolation) as caught:
        rig.server.receive_advertisement(forged)
    assert caught.value.peer == 2
