"""The lies of PROTOCOL.md, "What must be tested", told to a session or to the server.

Each is refused by the name of its check, leaves the state as it was (`Rig.refused` compares everything that the
machine holds), and the honest continuation still ends in the right sum. Cases 10 to 12 are elsewhere: wrong shares in
test_secagg_rounds, field edges and NaN with the codec.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import ConfigurationError, ConflictingMessage, ProtocolViolation, UsageError
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
    KeyShares,
    RoundParameters,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.secagg.keys import KeyPair, sign
from fedcore.secagg.schedule import advertisement_statement, consistency_statement


def _replaced(cohort: AdvertisedCohort, *others: Advertisement) -> AdvertisedCohort:
    """The cohort with some entries exchanged or added, in order."""
    members = {m.client_id: m for m in cohort.members} | {m.client_id: m for m in others}
    return AdvertisedCohort(tuple(members[i] for i in sorted(members)))


def _signed(rig, client_id, c_public, s_public, *, context=None, identity=None) -> Advertisement:
    statement = advertisement_statement(context or rig.parameters.ctx(), client_id, c_public, s_public)
    return Advertisement(client_id, c_public, s_public, sign(identity or rig.identities[client_id], statement))


# 1 key substitution


@pytest.mark.parametrize("part", ["c_public", "s_public", "signature"])
def test_case_1_a_key_exchanged_by_the_server(make_rig, drbg, part):
    rig = make_rig(4).until("share")
    honest = rig.server.advertised()
    fake = KeyPair.draw(drbg("server's own")).public
    value = fake + fake if part == "signature" else fake
    forged = _replaced(honest, dataclasses.replace(honest.members[2], **{part: value}))
    violation = rig.refused("key-substitution", rig.clients[1], lambda: rig.clients[1].share_keys(forged))
    assert violation.peer == 3
    rig.go_on("share")


def test_case_1_keys_signed_by_another_identity(make_rig, drbg):
    rig = make_rig(4).until("share")
    pair, other = KeyPair.draw(drbg("a")), KeyPair.draw(drbg("b"))
    forged = _signed(rig, 3, pair.public, other.public, identity=Ed25519PrivateKey.generate())
    cohort = _replaced(rig.server.advertised(), forged)
    rig.refused("key-substitution", rig.clients[1], lambda: rig.clients[1].share_keys(cohort))
    rig.go_on("share")


def test_case_1_own_entry_altered_or_missing(make_rig, drbg):
    rig = make_rig(4).until("share")
    session, honest = rig.clients[1], rig.server.advertised()
    # Rightly signed with the client's own identity, as a server that stole it, or a second session, would have it.
    other = _signed(rig, 1, KeyPair.draw(drbg("a")).public, KeyPair.draw(drbg("b")).public)
    rig.refused("own-entry-altered", session, lambda: session.share_keys(_replaced(honest, other)))
    without = AdvertisedCohort(honest.members[1:])
    rig.refused("own-entry-altered", session, lambda: session.share_keys(without))
    rig.go_on("share")


def test_case_1_one_key_for_two_clients_or_two_purposes(make_rig, drbg):
    rig = make_rig(4).until("share")
    session, honest = rig.clients[1], rig.server.advertised()
    stolen = honest.members[3]
    copied = _signed(rig, 3, stolen.c_public, stolen.s_public)
    rig.refused("duplicate-key", session, lambda: session.share_keys(_replaced(honest, copied)))
    one = KeyPair.draw(drbg("one")).public
    both = _signed(rig, 3, one, one)
    rig.refused("duplicate-key", session, lambda: session.share_keys(_replaced(honest, both)))
    rig.go_on("share")


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("point", [0, 1, 2**255 - 20, 2**255 - 19, 2**255])
def test_case_1_keys_of_low_order(make_rig, drbg, part, point):
    rig = make_rig(4)
    keys = [KeyPair.draw(drbg("a")).public, KeyPair.draw(drbg("b")).public]
    keys[part] = point.to_bytes(32, "little")
    bad = _signed(rig, 3, *keys)
    rig.refused("low-order-point", rig.server, lambda: rig.server.receive_advertisement(bad))
    rig.advertise()
    cohort = _replaced(rig.server.advertised(), bad)
    violation = rig.refused("low-order-point", rig.clients[1], lambda: rig.clients[1].share_keys(cohort))
    assert violation.peer == 3
    rig.go_on("share")


def test_case_1_the_server_takes_no_unsigned_keys_either(make_rig, drbg):
    rig = make_rig(4)
    forged = _signed(rig, 2, KeyPair.draw(drbg("a")).public, KeyPair.draw(drbg("b")).public)
    forged = dataclasses.replace(forged, client_id=3)
    rig.refused("key-substitution", rig.server, lambda: rig.server.receive_advertisement(forged))
    rig.go_on("advertise")


# 2 different survivors for different clients


def test_case_2_two_views_of_the_survivors_unmask_nobody(make_rig):
    rig = make_rig(7).until("sign")
    everyone, without_7 = Survivors(rig.ids), Survivors(rig.ids[:-1])
    signatures = {}
    for i in rig.ids:
        view = without_7 if i in {1, 2, 3} else everyone
        signatures[i] = rig.clients[i].sign_survivors(view).signature
    session = rig.clients[4]
    rig.refused("inconsistent-survivors", session, lambda: session.unmask(SignatureSet(signatures)))
    # One short of the threshold of 5, then exactly the threshold.
    short = SignatureSet({i: signatures[i] for i in (4, 5, 6, 7)})
    rig.refused("inconsistent-survivors", session, lambda: session.unmask(short))
    statement = consistency_statement(session._transcript, rig.ids, rig.ids)
    enough = {**short.signatures, 1: sign(rig.identities[1], statement)}
    assert session.unmask(SignatureSet(enough)).client_id == 4


def test_case_2_signatures_of_other_sharers_or_another_cohort_do_not_count(make_rig):
    rig = make_rig(5).until("unmask")
    session = rig.clients[1]
    transcript = session._transcript
    elsewhere = dataclasses.replace(transcript, cohort=bytes(32))
    other_round = dataclasses.replace(transcript, context=bytes(32))
    for statement in (
        consistency_statement(transcript, rig.ids[:-1], rig.ids),
        consistency_statement(elsewhere, rig.ids, rig.ids),
        consistency_statement(other_round, rig.ids, rig.ids),
        consistency_statement(transcript, (), (*rig.ids, *rig.ids)),
    ):
        wrong = SignatureSet({i: sign(rig.identities[i], statement) for i in rig.ids})
        rig.refused("inconsistent-survivors", session, lambda wrong=wrong: session.unmask(wrong))
    rig.go_on("unmask")


def test_case_2_only_survivors_of_the_roster_may_have_signed(make_rig):
    rig = make_rig(5).until("upload")
    rig.upload([1, 2, 3, 4])
    rig.sign()
    session, honest = rig.clients[1], dict(rig.server.signatures().signatures)
    rig.refused("signer-not-survivor", session, lambda: session.unmask(SignatureSet({**honest, 5: honest[1]})))
    rig.refused("off-roster", session, lambda: session.unmask(SignatureSet({**honest, 6: honest[1]})))
    rig.go_on("unmask")


def test_case_2_the_server_refuses_a_signature_over_other_survivors(make_rig):
    rig = make_rig(5).until("sign")
    statement = consistency_statement(rig.clients[1]._transcript, rig.ids, rig.ids[:-1])
    bad = ConsistencySignature(1, sign(rig.identities[1], statement))
    rig.refused("inconsistent-survivors", rig.server, lambda: rig.server.receive_consistency(bad))
    rig.go_on("sign")


# 3 a different model (or any other parameter) for one client


@pytest.mark.parametrize(
    "changed",
    [
        {"model_hash": hashlib.sha256(b"another model").digest()},
        {"roster_hash": hashlib.sha256(b"another roster").digest()},
        {"task_hash": hashlib.sha256(b"another task").digest()},
        {"encoding": b"bits=32"},
        {"round": 2},
        {"run": "run-2"},
        {"federation": "other"},
        {"words": 38},
        {"threshold": 5},
        {"corrupt": 1},
    ],
)
def test_case_3_one_client_with_other_parameters_is_found_by_all(make_rig, changed):
    rig = make_rig(5)
    parameters = dataclasses.replace(rig.parameters, **changed)
    victim = rig.client(3, parameters=parameters)
    advertised = victim.advertise()
    violation = rig.refused("key-substitution", rig.server, lambda: rig.server.receive_advertisement(advertised))
    assert violation.peer == 3
    # The server that lied passes the keys on all the same.
    rig.advertise([1, 2, 4, 5])
    cohort = _replaced(rig.server.advertised(), advertised)
    for session in (rig.clients[1], victim):
        rig.refused("key-substitution", session, lambda session=session: session.share_keys(cohort))
    rig.go_on("share")


# 4 a cohort below t or below the client's minimum


def test_case_4_the_owner_decides_the_least_cohort_and_threshold(make_rig):
    rig = make_rig(5)
    for limits, check in (
        ({"min_cohort": 6}, "cohort-below-minimum"),
        ({"min_threshold": 5}, "threshold-below-minimum"),
    ):
        with pytest.raises(ProtocolViolation) as caught:
            rig.client(1, **limits)
        assert caught.value.check == check
    assert rig.client(1, min_cohort=5, min_threshold=4).state == "new"


@pytest.mark.parametrize(("minimum", "kept"), [(2, 3), (5, 4)])
def test_case_4_too_few_at_each_list_that_the_server_sends(make_rig, minimum, kept):
    """n = 5, t = 4: three are below t; four are below an owner's minimum of five."""
    rig = make_rig(5)
    rig.clients[1] = session = rig.client(1, min_cohort=minimum)
    rig.until("share")
    cohort = AdvertisedCohort(rig.server.advertised().members[:kept])
    rig.refused("cohort-below-minimum", session, lambda: session.share_keys(cohort))
    rig.share()
    delivery = rig.server.delivery(1)
    some = rig.ids[:kept]
    fewer = ShareDelivery(some, {i: delivery.sealed[i] for i in some if i != 1})
    rig.refused("cohort-below-minimum", session, lambda: session.receive_shares(fewer))
    rig.deliver()
    rig.upload()
    rig.refused("cohort-below-minimum", session, lambda: session.sign_survivors(Survivors(some)))
    rig.go_on("sign")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cohort": (1,), "threshold": 1, "degree": 0}, "sum of one"),
        ({"threshold": 2}, "at least 3"),
        ({"threshold": 3, "corrupt": 1}, "at least 4"),
        ({"threshold": 6}, "cannot be met"),
        ({"degree": 3}, "degree must be 4"),
        ({"cohort": (1, 2, 3, 4, 4)}, "twice"),
        ({"cohort": (0, 1, 2, 3, 4)}, "between 1"),
        ({"cohort": (2, 1, 3, 4, 5)}, "ascending"),
        ({"cohort": (True, 2, 3, 4, 5)}, "a client id"),
        ({"cohort": (1.0, 2, 3, 4, 5)}, "a client id"),
        ({"cohort": [1, 2, 3, 4, 5]}, "tuple"),
        ({"model_hash": b"short"}, "32 bytes"),
        ({"words": 0}, "words"),
        ({"round": -1}, "round"),
        ({"round": True}, "round"),
        ({"run": ""}, "run"),
        ({"encoding": "text"}, "encoding"),
    ],
)
def test_case_4_parameters_that_cannot_be_safe(make_rig, changed, says):
    honest = make_rig(5).parameters
    fields = {field.name: getattr(honest, field.name) for field in dataclasses.fields(honest)} | changed
    with pytest.raises(ConfigurationError, match=says):
        RoundParameters(**fields)
    with pytest.raises(ProtocolViolation, match=says) as caught:
        RoundParameters.from_peer(**fields)
    assert caught.value.check == "bad-parameters"


def test_case_4_parameters_of_a_peer_with_a_field_too_many_or_too_few():
    with pytest.raises(ProtocolViolation, match="bad-parameters"):
        RoundParameters.from_peer(federation="f")


# 5 a second unmask request with another U3


def test_case_5_no_second_set_of_survivors(make_rig):
    rig = make_rig(5).until("sign")
    session = rig.clients[1]
    first = session.sign_survivors(Survivors(rig.ids))
    other = Survivors((1, 2, 3, 4))
    rig.refused("second-survivor-set", session, lambda: session.sign_survivors(other))
    assert session.sign_survivors(Survivors(rig.ids)) == first
    rig.go_on("sign")
    rig.refused("second-survivor-set", session, lambda: session.sign_survivors(other))


def test_case_5_shares_are_released_once(make_rig):
    rig = make_rig(5).until("unmask")
    session, everything = rig.clients[1], rig.server.signatures()
    released = session.unmask(everything)
    fewer = SignatureSet({i: everything.signatures[i] for i in (1, 2, 3, 4)})
    rig.refused("second-unmask", session, lambda: session.unmask(fewer))
    assert session.unmask(everything) == released
    rig.go_on("unmask")


def test_case_5_a_client_never_releases_both_shares_of_one_client(make_rig):
    rig = make_rig(6).until("upload")
    rig.upload([1, 2, 3, 4, 5])
    rig.sign()
    for i in (1, 2, 3, 4, 5):
        released = rig.clients[i].unmask(rig.server.signatures())
        assert set(released.self_shares) == {1, 2, 3, 4, 5}
        assert set(released.key_shares) == {6}


def test_case_5_the_server_takes_no_shares_of_both(make_rig):
    rig = make_rig(5).until("unmask")
    honest = rig.clients[1].unmask(rig.server.signatures())
    both = UnmaskShares(1, honest.self_shares, {2: bytes(33)})
    rig.refused("shares-for-both", rig.server, lambda: rig.server.receive_unmask(both))
    moved = dict(honest.self_shares)
    moved.pop(2)
    for bad in (UnmaskShares(1, moved, {}), UnmaskShares(1, moved, {2: bytes(33)})):
        rig.refused("wrong-recipients", rig.server, lambda bad=bad: rig.server.receive_unmask(bad))
    rig.go_on("unmask")


def test_case_5_no_second_cohort_and_no_second_delivery(make_rig):
    rig = make_rig(5).until("upload")
    session, cohort, delivery = rig.clients[1], rig.server.advertised(), rig.server.delivery(1)
    fewer = AdvertisedCohort(cohort.members[:4])
    rig.refused("second-cohort", session, lambda: session.share_keys(fewer))
    part = ShareDelivery(rig.ids[:4], {i: delivery.sealed[i] for i in (2, 3, 4)})
    rig.refused("second-delivery", session, lambda: session.receive_shares(part))
    rig.go_on("upload")


# 6 shares replayed across rounds or pairs


def _with_share(delivery: ShareDelivery, sender: int, sealed: bytes) -> ShareDelivery:
    return ShareDelivery(delivery.sharers, {**delivery.sealed, sender: sealed})


def test_case_6_shares_of_another_pair_round_or_cohort(make_rig):
    rig = make_rig(5).until("deliver")
    session, honest = rig.clients[1], rig.server.delivery(1)
    next_round = make_rig(5, round=2).until("deliver").server.delivery(1)
    for sealed in (
        rig.server.delivery(2).sealed[3],  # from the same sender to another receiver
        honest.sealed[2],  # to the same receiver from another sender
        rig.server.delivery(3).sealed[1],  # the same pair, the other direction
        next_round.sealed[3],
        bytes(82),
    ):
        replayed = _with_share(honest, 3, sealed)
        violation = rig.refused("share-unsealing", session, lambda bad=replayed: session.receive_shares(bad))
        assert violation.peer == 3
    rig.go_on("deliver")


def test_case_6_same_keys_but_another_context_or_cohort_do_not_open(make_rig):
    """The binding itself, apart from the fresh keys of every round."""
    rig = make_rig(5).until("deliver")
    session, honest = rig.clients[1], rig.server.delivery(1)
    for changed in ({"context": bytes(32)}, {"cohort": bytes(32)}):
        transcript = session._transcript
        session._transcript = dataclasses.replace(transcript, **changed)
        rig.refused("share-unsealing", session, lambda: session.receive_shares(honest))
        session._transcript = transcript
    rig.go_on("deliver")


def test_case_6_keys_of_an_earlier_round_are_substituted_keys(make_rig):
    rig, earlier = make_rig(5, round=2).until("share"), make_rig(5, round=1).until("share")
    replayed = _replaced(rig.server.advertised(), earlier.server.advertised().members[2])
    rig.refused("key-substitution", rig.clients[1], lambda: rig.clients[1].share_keys(replayed))
    rig.go_on("share")


def test_case_6_signatures_of_another_usage_do_not_count(make_rig):
    rig = make_rig(5).until("unmask")
    session = rig.clients[1]
    adverts = SignatureSet({m.client_id: m.signature for m in rig.server.advertised().members})
    rig.refused("inconsistent-survivors", session, lambda: session.unmask(adverts))
    rig.go_on("unmask")


# 7 a vector that arrives after its client was declared dropped


def test_case_7_late_input(make_rig):
    rig = make_rig(6).until("upload")
    late = rig.mask(6)
    rig.server.drop(6)
    rig.refused("late-input", rig.server, lambda: rig.server.receive_input(6, late))
    rig.upload([1, 2, 3, 4, 5])
    rig.refused("late-input", rig.server, lambda: rig.server.receive_input(6, late))
    rig.go_on("sign")
    rig.refused("late-input", rig.server, lambda: rig.server.receive_input(6, late))
    rig.assert_sum([1, 2, 3, 4, 5])


def test_case_7_every_later_message_of_a_dropped_client(make_rig):
    rig = make_rig(7)
    server, refused = rig.server, rig.refused
    first = rig.clients[7].advertise()
    server.drop(7)
    refused("dropped-client", server, lambda: server.receive_advertisement(first))
    rig.advertise([1, 2, 3, 4, 5, 6])
    refused("dropped-client", server, lambda: server.receive_advertisement(first))
    shares = rig.clients[6].share_keys(server.advertised())
    rig.share([1, 2, 3, 4, 5])
    refused("dropped-client", server, lambda: server.receive_shares(shares))
    with pytest.raises(ProtocolViolation, match="dropped-client"):
        server.delivery(6)
    rig.go_on("deliver")


# 8 ids off the roster, one id twice


def test_case_8_ids_off_the_roster_or_not_asked(make_rig, drbg):
    rig = make_rig(5)
    stranger = Ed25519PrivateKey.generate()
    keys = KeyPair.draw(drbg("a")).public, KeyPair.draw(drbg("b")).public
    unknown = _signed(rig, 6, *keys, identity=stranger)
    rig.refused("off-roster", rig.server, lambda: rig.server.receive_advertisement(unknown))
    rig.refused("off-roster", rig.server, lambda: rig.server.receive_input(6, bytes(32)))
    # Client 6 is on the roster of client 1, but the round did not ask for it.
    roster = rig.roster | {6: stranger.public_key().public_bytes_raw()}
    rig.clients[1] = rig.client(1, roster=roster)
    rig.advertise()
    cohort = _replaced(rig.server.advertised(), unknown)
    for i in (1, 2):
        rig.refused("off-roster", rig.clients[i], lambda i=i: rig.clients[i].share_keys(cohort))
    rig.go_on("share")


def test_case_8_a_cohort_that_the_roster_does_not_know(make_rig):
    rig = make_rig(5)
    smaller = {i: key for i, key in rig.roster.items() if i != 5}
    with pytest.raises(ProtocolViolation) as caught:
        rig.client(1, roster=smaller)
    assert (caught.value.check, caught.value.peer) == ("off-roster", 5)
    with pytest.raises(ProtocolViolation) as caught:
        rig.client(1, parameters=dataclasses.replace(rig.parameters, cohort=(2, 3, 4, 5, 6)))
    assert caught.value.check == "own-id-missing"


def test_case_8_one_id_twice_and_one_left_out(make_rig):
    rig = make_rig(5).until("share")
    session, honest = rig.clients[1], rig.server.advertised()
    twice = AdvertisedCohort((*honest.members, honest.members[4]))
    rig.refused("duplicate-id", session, lambda: session.share_keys(twice))
    rig.share()
    delivery = rig.server.delivery(1)
    doubled = ShareDelivery((1, 2, 3, 4, 5, 5), delivery.sealed)
    rig.refused("duplicate-id", session, lambda: session.receive_shares(doubled))
    without_me = ShareDelivery((2, 3, 4, 5), delivery.sealed)
    rig.refused("own-id-missing", session, lambda: session.receive_shares(without_me))
    stranger = ShareDelivery((1, 2, 3, 4, 5, 6), {**delivery.sealed, 6: delivery.sealed[5]})
    rig.refused("sharers-not-advertised", session, lambda: session.receive_shares(stranger))
    rig.deliver()
    rig.upload()
    for ids, check in (
        ((1, 2, 3, 4, 4), "duplicate-id"),
        ((2, 3, 4, 5), "own-id-missing"),
        ((1, 2, 3, 4, 6), "survivors-not-sharers"),
    ):
        rig.refused(check, session, lambda ids=ids: session.sign_survivors(Survivors(ids)))
    rig.go_on("sign")


def test_case_8_a_delivery_with_a_share_missing_or_too_many(make_rig):
    rig = make_rig(5).until("deliver")
    session, honest = rig.clients[1], rig.server.delivery(1)
    missing = ShareDelivery(honest.sharers, {i: honest.sealed[i] for i in (2, 3, 4)})
    extra = _with_share(honest, 1, honest.sealed[2])
    for bad in (missing, extra):
        rig.refused("wrong-recipients", session, lambda bad=bad: session.receive_shares(bad))
    rig.go_on("deliver")


def test_case_8_the_server_wants_a_share_for_each_neighbour_and_no_one_else(make_rig):
    rig = make_rig(5).until("share")
    honest = rig.clients[1].share_keys(rig.server.advertised())
    for sealed in (
        {i: honest.sealed[i] for i in (2, 3, 4)},
        {**honest.sealed, 1: honest.sealed[2]},
        {**honest.sealed, 6: honest.sealed[2]},
    ):
        bad = KeyShares(1, honest.commitment, sealed)
        rig.refused("wrong-recipients", rig.server, lambda bad=bad: rig.server.receive_shares(bad))
    rig.go_on("share")


# 9 two uploads of one client


def test_case_9_an_answer_again_is_one_answer_and_another_one_conflicts(make_rig, freeze):
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


# 13 a crash and retry that would reuse a mask


def test_case_13_a_restarted_client_has_other_masks_and_is_no_longer_of_the_round(make_rig, drbg):
    rig = make_rig(5).until("share")
    reborn = rig.client(1, seed="after the crash", randomness=drbg("after the crash"))
    first = rig.server.advertised().members[0]
    again = reborn.advertise()
    assert {first.c_public, first.s_public}.isdisjoint({again.c_public, again.s_public})
    with pytest.raises(ConflictingMessage):
        rig.server.receive_advertisement(again)
    rig.refused("own-entry-altered", reborn, lambda: reborn.share_keys(rig.server.advertised()))
    rig.lose("share", [1])
    rig.assert_sum([2, 3, 4, 5])


@pytest.mark.parametrize("store", [pickle.dumps, copy.copy, copy.deepcopy])
def test_case_13_a_session_cannot_be_stored_or_copied(make_rig, store):
    rig = make_rig(3).until("upload")
    with pytest.raises(UsageError, match="dropout"):
        store(rig.clients[1])


def test_case_13_a_vector_masked_half_way_spoils_the_session(make_rig, monkeypatch):
    rig = make_rig(3).until("upload")

    def out_of_memory(*_args, **_keywords):
        raise MemoryError

    monkeypatch.setattr("fedcore.secagg.client.apply_masks", out_of_memory)
    with pytest.raises(MemoryError):
        rig.clients[1].mask(np.zeros(37, dtype=np.uint64))
    assert rig.clients[1].state == "abandoned"


# 14 truncated, oversized, malformed messages, at every step


def _misshapen(value):
    """Wrong versions of one field of a message."""
    if isinstance(value, bytes):
        return [value[:-1], value + b"\0", b"", bytearray(value), value.hex(), None]
    if isinstance(value, bool | int):
        return [0, -1, 2**63, True, 1.0, "1", None]
    if isinstance(value, tuple):
        return [(), tuple(reversed(value)), list(value), (*value, None), (0, *value), None]
    some = next(iter(value))
    return [
        None,
        list(value),
        {**value, 0: value[some]},
        {**value, "1": value[some]},
        *({**value, some: bad} for bad in _misshapen(value[some])),
    ]


def _steps(rig):
    """Each message of a round with its receiver, in order; the rig moves on as they are asked for."""
    session, server = rig.clients[1], rig.server
    yield server, server.receive_advertisement, session.advertise()
    rig.advertise()
    cohort = server.advertised()
    yield session, session.share_keys, cohort
    yield server, server.receive_shares, session.share_keys(cohort)
    rig.share()
    yield session, session.receive_shares, server.delivery(1)
    rig.deliver()
    rig.upload([1, 2, 3, 4])
    yield session, session.sign_survivors, server.survivors()
    yield server, server.receive_consistency, session.sign_survivors(server.survivors())
    rig.sign()
    yield session, session.unmask, server.signatures()
    yield server, server.receive_unmask, session.unmask(server.signatures())
    rig.unmask()


def test_case_14_no_misshapen_message_moves_anything(make_rig):
    rig = make_rig(5)
    tried = 0
    for machine, receive, honest in _steps(rig):
        for field in dataclasses.fields(honest):
            for bad in _misshapen(getattr(honest, field.name)):
                message = dataclasses.replace(honest, **{field.name: bad})
                rig.refused("malformed", machine, lambda receive=receive, message=message: receive(message))
                tried += 1
    assert tried > 100
    rig.assert_sum([1, 2, 3, 4])


def test_case_14_misshapen_members_of_a_cohort(make_rig):
    rig = make_rig(3).until("share")
    session, members = rig.clients[1], rig.server.advertised().members
    for field in dataclasses.fields(Advertisement):
        for bad in _misshapen(getattr(members[1], field.name)):
            entry = dataclasses.replace(members[1], **{field.name: bad})
            cohort = AdvertisedCohort((members[0], entry, members[2]))
            rig.refused("malformed", session, lambda cohort=cohort: session.share_keys(cohort))
    rig.go_on("share")


def test_case_14_a_share_outside_the_field(make_rig):
    rig = make_rig(3).until("unmask")
    honest = rig.clients[1].unmask(rig.server.signatures())
    for raw in ((2**256 + 297).to_bytes(33, "big"), b"\xff" * 33):
        bad = UnmaskShares(1, {**honest.self_shares, 2: raw}, {})
        rig.refused("malformed", rig.server, lambda bad=bad: rig.server.receive_unmask(bad))
    rig.go_on("unmask")


@pytest.mark.parametrize("digest", [b"", bytes(31), bytes(33), "00" * 32, None])
def test_case_14_a_digest_of_the_wrong_size(make_rig, digest):
    rig = make_rig(3).until("upload")
    rig.refused("malformed", rig.server, lambda: rig.server.receive_input(1, digest))
    rig.go_on("upload")


def test_case_14_a_sealed_text_that_is_no_share(make_rig, monkeypatch):
    rig = make_rig(3).until("share")
    with monkeypatch.context() as patch:
        patch.setattr(
            "fedcore.secagg.shamir.split", lambda secret, *, holders, **_: dict.fromkeys(holders, b"\xff" * 33)
        )
        rig.server.receive_shares(rig.clients[2].share_keys(rig.server.advertised()))
    rig.share([1, 3])
    violation = rig.refused("malformed", rig.clients[1], lambda: rig.clients[1].receive_shares(rig.server.delivery(1)))
    assert violation.peer == 2


def test_the_identity_must_be_the_one_on_the_roster(make_rig):
    rig = make_rig(3)
    with pytest.raises(ConfigurationError, match="client 1"):
        rig.client(1, identity=rig.identities[2])
