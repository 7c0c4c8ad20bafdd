"""Lies about the cohort: whose keys, which round, how many clients.

Each is refused by the name of its check, leaves the state as it was (`Rig.refused` compares everything that the
machine holds), and the honest continuation still ends in the right sum. What a server shows is worked out from its
forgery (`Rig.view`), so that nothing but the lie itself gives it away. Lies that only a sparse graph allows are in
test_secagg_lies_ring, those about shares in test_secagg_lies_shares, the rest in test_secagg_lies_survivors.
"""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.errors import ConfigurationError, ProtocolViolation, UsageError
from fedcore.secagg import AdvertisedCohort, Agreement, ShareDelivery, Survivors
from tests.support.raising import raises

# 1 key substitution


def _is_refused(rig, check, forged):
    """A neighbour of the client whose entry was forged, on the ring that the forgery makes, refuses it."""
    view = rig.view(rig.advertisements() | {forged.client_id: forged})
    session = rig.clients[view.graph.neighbours(forged.client_id)[0]]
    violation = rig.refused(check, session, lambda: session.share_keys(view.cohort(session._client_id)))
    assert violation.peer == forged.client_id


@pytest.mark.parametrize("part", ["c_public", "s_public", "signature"])
def test_a_key_exchanged_by_the_server(any_rig, part):
    rig = any_rig().until("share")
    value = bytes(64) if part == "signature" else rig.keys("the server's own")
    _is_refused(rig, "key-substitution", dataclasses.replace(rig.advertisements()[3], **{part: value}))
    rig.go_on("share")


def test_half_of_a_hybrid_key_exchanged(make_rig):
    rig = make_rig(5, agreement=Agreement.HYBRID).until("share")
    honest, fake = rig.advertisements()[3], rig.keys("the server's own")
    for mixed in (honest.s_public[:32] + fake[32:], fake[:32] + honest.s_public[32:]):
        _is_refused(rig, "key-substitution", dataclasses.replace(honest, s_public=mixed))
    rig.go_on("share")


def test_keys_signed_by_another_identity(any_rig):
    rig = any_rig().until("share")
    forged = rig.signed(3, rig.keys("a"), rig.keys("b"), identity=Ed25519PrivateKey.generate())
    _is_refused(rig, "key-substitution", forged)
    rig.go_on("share")


def test_keys_in_each_others_place(any_rig):
    """c for s and s for c, under the signature that covers both."""
    rig = any_rig().until("share")
    honest = rig.advertisements()[3]
    swapped = dataclasses.replace(honest, c_public=honest.s_public, s_public=honest.c_public)
    _is_refused(rig, "key-substitution", swapped)
    rig.go_on("share")


def test_own_entry_altered_or_missing(any_rig):
    rig = any_rig().until("share")
    session, honest = rig.clients[1], rig.advertisements()
    # Rightly signed with the client's own identity, as a server that stole it, or a second session, would have it.
    other = rig.view(honest | {1: rig.signed(1, rig.keys("a"), rig.keys("b"))})
    rig.refused("own-entry-altered", session, lambda: session.share_keys(other.cohort(1)))
    unshown = rig.view(honest).showing(rig.graph().neighbours(1))
    rig.refused("own-entry-altered", session, lambda: session.share_keys(unshown))
    unlisted = rig.view({i: entry for i, entry in honest.items() if i != 1})
    rig.refused("own-entry-altered", session, lambda: session.share_keys(unlisted.cohort(2)))
    rig.go_on("share")


@pytest.mark.parametrize("agreement", Agreement)
def test_one_key_for_two_clients_or_two_purposes(make_rig, agreement):
    rig = make_rig(4, agreement=agreement).until("share")
    session, honest = rig.clients[1], rig.advertisements()
    one = rig.keys("one")
    for forged in (
        rig.signed(3, honest[4].c_public, honest[4].s_public),
        rig.signed(3, honest[3].c_public, honest[4].c_public),
        rig.signed(3, one, one),
    ):
        cohort = rig.view(honest | {3: forged}).cohort(1)
        rig.refused("duplicate-key", session, lambda cohort=cohort: session.share_keys(cohort))
    rig.go_on("share")


def test_the_server_lists_no_key_twice_either(make_rig):
    """Everybody would refuse the whole list for it: one client with one key for both purposes would end every round."""
    rig = make_rig(4)
    honest = rig.clients[1].advertise()
    rig.server.receive_advertisement(honest)
    one, other = rig.keys("one"), rig.keys("other")
    for keys in ((one, one), (honest.c_public, other), (other, honest.c_public), (honest.s_public, other)):
        copied = rig.signed(2, *keys)
        refusal = rig.refused(
            "duplicate-key", rig.server, lambda copied=copied: rig.server.receive_advertisement(copied)
        )
        assert refusal.peer == 2
    rig.server.receive_advertisement(honest)  # said again
    rig.advertise([2, 3, 4])
    rig.go_on("share")


@pytest.mark.parametrize("agreement", Agreement)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("point", [0, 1, 2**255 - 20, 2**255 - 19, 2**255])
def test_keys_of_low_order(make_rig, agreement, part, point):
    rig = make_rig(4, agreement=agreement)
    keys = [rig.keys("a"), rig.keys("b")]
    keys[part] = point.to_bytes(32, "little") + keys[part][32:]
    bad = rig.signed(3, *keys)
    rig.refused("low-order-point", rig.server, lambda: rig.server.receive_advertisement(bad))
    rig.advertise()
    _is_refused(rig, "low-order-point", bad)
    rig.go_on("share")


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("agreement", Agreement)
def test_keys_of_the_other_agreement(make_rig, agreement, part):
    """A server that could lead clients back to X25519 alone would only have to wait for its quantum computer."""
    rig = make_rig(4, agreement=agreement)
    other = next(a for a in Agreement if a is not agreement)
    keys = [rig.keys("a"), rig.keys("b")]
    keys[part] = make_rig(4, agreement=other).keys("c")
    bad = rig.signed(3, *keys)
    rig.refused("malformed", rig.server, lambda: rig.server.receive_advertisement(bad))
    rig.advertise()
    _is_refused(rig, "malformed", bad)
    rig.go_on("share")


@pytest.mark.parametrize("part", [0, 1])
def test_what_is_no_key_of_ml_kem(make_rig, part):
    """The first coefficient of the key is 4095, which FIPS 203 (section 7.2) has the receiver refuse."""
    rig = make_rig(4, agreement=Agreement.HYBRID)
    keys = [rig.keys("a"), rig.keys("b")]
    keys[part] = keys[part][:32] + b"\xff\xff" + keys[part][34:]
    bad = rig.signed(3, *keys)
    rig.refused("malformed", rig.server, lambda: rig.server.receive_advertisement(bad))
    rig.advertise()
    _is_refused(rig, "malformed", bad)
    rig.go_on("share")


def test_the_server_takes_no_unsigned_keys_either(any_rig):
    rig = any_rig()
    forged = dataclasses.replace(rig.signed(2, rig.keys("a"), rig.keys("b")), client_id=3)
    rig.refused("key-substitution", rig.server, lambda: rig.server.receive_advertisement(forged))
    rig.go_on("advertise")


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
        {"threshold": 3},
        {"quorum": 5},
        {"corrupt": 1},
        {"degree": 2, "threshold": 3},
        {"agreement": Agreement.HYBRID},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_one_client_with_other_parameters_is_found_by_all(make_rig, changed):
    rig = make_rig(5)
    parameters = dataclasses.replace(rig.parameters, **changed)
    victim = rig.client(3, parameters=parameters)
    advertised = victim.advertise()
    violation = rig.refused("key-substitution", rig.server, lambda: rig.server.receive_advertisement(advertised))
    assert violation.peer == 3
    # The server that lied passes the keys on all the same.
    rig.advertise([1, 2, 4, 5])
    forged = rig.advertisements() | {3: advertised}
    shown = rig.view(forged).cohort(1)
    rig.refused("key-substitution", rig.clients[1], lambda: rig.clients[1].share_keys(shown))
    shown_victim = rig.view(forged, parameters).cohort(3)
    rig.refused("key-substitution", victim, lambda: victim.share_keys(shown_victim))
    rig.go_on("share")


# 4 a cohort below the quorum or below the client's minimum


def test_the_owner_decides_the_least_cohort_and_threshold(make_rig):
    rig = make_rig(5)
    for limits, check in (
        ({"min_cohort": 5}, "cohort-below-minimum"),  # of five asked, but the round goes on with four
        ({"min_threshold": 5}, "threshold-below-minimum"),
    ):
        with pytest.raises(ProtocolViolation) as caught:
            rig.client(1, **limits)
        assert caught.value.check == check
    assert rig.client(1, min_cohort=4, min_threshold=4).state == "new"


def test_who_may_collude_does_not_count_towards_the_least_cohort(make_rig):
    rig = make_rig(6, corrupt=1)
    with raises(ProtocolViolation, check="cohort-below-minimum", numbers=(4, 5)):
        rig.client(1, min_cohort=5)
    assert rig.client(1, min_cohort=4).state == "new"


def test_too_few_at_each_list_that_the_server_sends(any_rig):
    """One below the quorum."""
    rig = any_rig().until("share")
    session, some = rig.clients[1], rig.ids[: rig.parameters.quorum - 1]
    fewer = rig.view({i: entry for i, entry in rig.advertisements().items() if i in some})
    rig.refused("cohort-below-minimum", session, lambda: session.share_keys(fewer.cohort(1)))
    rig.share()
    delivery = rig.server.delivery(1)
    part = ShareDelivery(
        some,
        {i: raw for i, raw in delivery.shares.items() if i in some},
        {i: raw for i, raw in delivery.pair_secrets.items() if i in some},
    )
    rig.refused("cohort-below-minimum", session, lambda: session.receive_shares(part))
    rig.deliver()
    rig.upload()
    rig.refused("cohort-below-minimum", session, lambda: session.sign_survivors(Survivors(some)))
    rig.go_on("sign")


# 6 keys of another round


def test_keys_of_an_earlier_round_are_substituted_keys(any_rig):
    rig, earlier = any_rig(round=2).until("share"), any_rig(round=1).until("share")
    _is_refused(rig, "key-substitution", earlier.advertisements()[3])
    rig.go_on("share")


# 8 ids off the roster, one id twice


def test_ids_off_the_roster_or_not_asked(any_rig):
    rig = any_rig()
    stranger, number = Ed25519PrivateKey.generate(), rig.ids[-1] + 1
    unknown = rig.signed(number, rig.keys("a"), rig.keys("b"), identity=stranger)
    rig.refused("off-roster", rig.server, lambda: rig.server.receive_advertisement(unknown))
    rig.refused("off-roster", rig.server, lambda: rig.server.receive_input(number, bytes(32)))
    # The stranger is on the roster of client 1, but the round did not ask for it.
    roster = rig.roster | {number: stranger.public_key().public_bytes_raw()}
    rig.clients[1] = rig.client(1, roster=roster)
    rig.advertise()
    view = rig.view(rig.advertisements() | {number: unknown})
    for i in (1, 2):
        violation = rig.refused("off-roster", rig.clients[i], lambda i=i: rig.clients[i].share_keys(view.cohort(i)))
        assert violation.peer == number
    rig.go_on("share")


def test_a_cohort_that_the_roster_does_not_know(make_rig):
    rig = make_rig(5)
    smaller = {i: key for i, key in rig.roster.items() if i != 5}
    with pytest.raises(ProtocolViolation) as caught:
        rig.client(1, roster=smaller)
    assert (caught.value.check, caught.value.peer) == ("off-roster", 5)
    with pytest.raises(ProtocolViolation) as caught:
        rig.client(1, parameters=dataclasses.replace(rig.parameters, cohort=(2, 3, 4, 5, 6)))
    assert caught.value.check == "own-id-missing"


def test_one_id_twice_in_the_cohort(any_rig):
    rig = any_rig().until("share")
    session, honest = rig.clients[1], rig.server.advertised(1)
    for twice in (
        dataclasses.replace(honest, ids=(*honest.ids, honest.ids[-1])),
        dataclasses.replace(honest, members=(*honest.members, honest.members[-1])),
    ):
        rig.refused("duplicate-id", session, lambda twice=twice: session.share_keys(twice))
    rig.go_on("share")


def test_keys_of_a_client_that_is_not_listed(any_rig):
    rig = any_rig().until("share")
    session, honest = rig.clients[1], rig.server.advertised(1)
    unlisted = honest.members[-1].client_id
    cohort = dataclasses.replace(honest, ids=tuple(i for i in honest.ids if i != unlisted))
    rig.refused("malformed", session, lambda: session.share_keys(cohort))
    rig.go_on("share")


def test_a_cohort_is_one_kind_of_message(make_rig):
    rig = make_rig(3).until("share")
    honest = rig.server.advertised(1)
    for members in ((honest,), (None,), list(honest.members)):
        bad = AdvertisedCohort(honest.ids, members, ())
        rig.refused("malformed", rig.clients[1], lambda bad=bad: rig.clients[1].share_keys(bad))


def test_the_identity_must_be_the_one_on_the_roster(make_rig):
    rig = make_rig(3)
    with pytest.raises(ConfigurationError, match="client 1"):
        rig.client(1, identity=rig.identities[2])


def test_the_server_wants_the_whole_cohort_on_its_roster(make_rig):
    rig = make_rig(3)
    with pytest.raises(UsageError, match=r"\[3\]"):
        type(rig.server)(parameters=rig.parameters, roster={i: rig.roster[i] for i in (1, 2)})
