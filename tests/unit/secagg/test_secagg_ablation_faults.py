"""Attacks of the world `faults` in proofs/maude on the round of an honest server.

With the check each is refused, and whoever cheated is named where that can be proved. Without it the promise is broken
that the table in proofs/ablation.py names.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fedcore.secagg import Agreement, Fault, UnmaskShares, apply_masks, dealing, inspection
from fedcore.secagg.checks import Check
from fedcore.secagg.crypto import schedule
from fedcore.secagg.transitions import SERVER, Transition
from tests.support.hostile import advertise_as

CHEAT = 4


class Forgetful(set):
    """Those that were dropped, for a server that does not ask whether somebody was."""

    def __contains__(self, _):
        return False


def test_a_vector_that_comes_too_late(make_rig):
    rig = make_rig(4).until("upload")
    rig.upload([1, 2, 3])
    digest = rig.mask(CHEAT)
    rig.refused("late-input", rig.server, lambda: rig.server.receive_input(CHEAT, digest))


def test_without_the_check_it_spoils_the_sum(make_rig):
    rig = make_rig(4).until("upload")
    rig.upload([1, 2, 3])
    rig.server._dropped = Forgetful(rig.server._dropped)
    rig.server.receive_input(CHEAT, rig.mask(CHEAT))
    rig.sign()
    rig.unmask([1, 2, 3])
    received = np.sum(list(rig.uploads.values()), axis=0, dtype=np.uint64)
    apply_masks(received, rig.server.mask_terms())
    assert rig.server.survivors().survivors == (1, 2, 3)
    assert not np.array_equal(received, rig.total())


def _shared_too_late(make_rig):
    rig = make_rig(4).until("share")
    rig.share([1, 2, 3])
    rig.deliver()
    return rig, rig.clients[CHEAT].share_keys(rig.server.advertised(CHEAT))


def test_shares_of_a_client_that_was_dropped(make_rig):
    rig, late = _shared_too_late(make_rig)
    rig.refused("dropped-client", rig.server, lambda: rig.server.receive_shares(late))
    rig.go_on("upload")


def test_without_the_check_all_others_leave(make_rig):
    rig, late = _shared_too_late(make_rig)
    rig.server._dropped = Forgetful(rig.server._dropped)
    rig.server.receive_shares(late)
    rig.upload([1, 2, 3])
    for i in (1, 2, 3):
        rig.refused(
            "survivors-not-sharers", rig.clients[i], lambda i=i: rig.clients[i].sign_survivors(rig.server.survivors())
        )
    assert not rig.server.blamed


class AnyOrder(dict):
    """The table of transitions, with every message in every stage."""

    def get(self, key, _=None):
        return super().get(key, Transition(key[0]))


def test_a_vector_that_comes_too_early(make_rig):
    rig = make_rig(4).until("share")
    rig.refused("out-of-order", rig.server, lambda: rig.server.receive_input(CHEAT, bytes(32)))


def test_without_the_check_it_counts_as_shares_that_nobody_gets(make_rig, monkeypatch):
    rig = make_rig(4).until("share")
    monkeypatch.setattr("fedcore.secagg.server.SERVER", AnyOrder(SERVER))
    rig.server.receive_input(CHEAT, bytes(32))
    rig.share([1, 2, 3])
    for i in (1, 2, 3):
        rig.refused(
            "wrong-recipients", rig.clients[i], lambda i=i: rig.clients[i].receive_shares(rig.server.delivery(i))
        )
    assert not rig.server.blamed


def _of_another_size(rig):
    """Sealed as with the hybrid agreement, in a round without it."""
    session = rig.clients[CHEAT]
    honest = session.share_keys(rig.server.advertised(CHEAT))
    longer = {i: parcel + bytes(Agreement.HYBRID.ciphertext_bytes) for i, parcel in honest.shares.items()}
    return session._signed(dataclasses.replace(honest, shares=longer), session._transcript, session._graph)


def test_parcels_of_another_size(make_rig):
    rig = make_rig(4).until("share")
    shares = _of_another_size(rig)
    refused = rig.refused("malformed", rig.server, lambda: rig.server.receive_shares(shares))
    assert refused.peer == CHEAT


def test_without_the_check_nobody_can_open_or_complain_of_them(make_rig, monkeypatch):
    rig = make_rig(4).until("share")
    check_sealed = inspection.check_sealed
    monkeypatch.setattr(inspection, "check_sealed", lambda *args: None if args[-1] == CHEAT else check_sealed(*args))
    rig.server.receive_shares(_of_another_size(rig))
    rig.share([1, 2, 3])
    for i in (1, 2, 3):
        session, delivery, evidence = rig.clients[i], rig.server.delivery(i), rig.server.dealing(i, CHEAT)
        rig.refused("malformed", session, lambda: session.receive_shares(delivery))  # noqa: B023 - called at once
        rig.refused("malformed", session, lambda: session.complain(delivery, evidence))  # noqa: B023 - called at once
    assert not rig.server.blamed


def _another_share(rig, receiver):
    """Client 4 deals `receiver` other shares than it commits to, and signs that."""
    session = rig.clients[CHEAT]
    honest = session.share_keys(rig.server.advertised(CHEAT))
    sealed = schedule.seal_shares(
        session._transcript,
        session._secrets.seal_pair,
        session._publics[receiver].c_public,
        sender=CHEAT,
        receiver=receiver,
        text=bytes(66),
    )
    parcel = dealing.split_parcel(honest.shares[receiver])[0] + sealed
    dealt = dataclasses.replace(honest, shares={**honest.shares, receiver: parcel})
    rig.server.receive_shares(session._signed(dealt, session._transcript, session._graph))
    rig.share([1, 2, 3])


def test_a_share_that_its_dealer_did_not_commit_to(make_rig):
    rig = make_rig(4).until("share")
    _another_share(rig, 1)
    session, delivery = rig.clients[1], rig.server.delivery(1)
    rig.refused("uncommitted-share", session, lambda: session.receive_shares(delivery))
    rig.server.judge(session.complain(delivery, rig.server.dealing(1, CHEAT)))
    assert rig.server.blamed == {CHEAT: Fault.INCONSISTENT_DEALING}


def test_without_the_check_the_one_that_got_it_is_convicted(make_rig, monkeypatch):
    rig = make_rig(4).until("share")
    _another_share(rig, 1)
    monkeypatch.setattr(dealing, "fault_in", lambda text, *_: None if text else Check.SHARE_UNSEALING)
    rig.go_on("deliver")
    assert rig.server.blamed == {1: Fault.WRONG_SHARE}


def _both_shares(rig):
    """What client 4 holds of all: a share of the self secret, and of the mask root of client 1 too."""
    held = rig.clients[CHEAT]._secrets.shares
    key_share = held[1].of_key
    said = rig.clients[CHEAT].unmask(rig.server.signatures())
    return UnmaskShares(CHEAT, said.self_shares, {1: key_share})


def test_shares_of_both_secrets(make_rig, monkeypatch):
    rig = make_rig(4).until("unmask")
    both = _both_shares(rig)
    rig.refused("shares-for-both", rig.server, lambda: rig.server.receive_unmask(both))
    monkeypatch.setattr(UnmaskShares, "check", lambda _: None)
    rig.refused("wrong-recipients", rig.server, lambda: rig.server.receive_unmask(both))


def test_with_neither_check_the_server_has_both(make_rig, monkeypatch):
    rig = make_rig(4).until("unmask")
    both = _both_shares(rig)
    monkeypatch.setattr(UnmaskShares, "check", lambda _: None)
    monkeypatch.setattr(rig.server, "owners", lambda _: (tuple(both.self_shares), tuple(both.key_shares)))
    rig.server.receive_unmask(both)
    kept = rig.server._released[CHEAT]
    assert kept.self_shares.keys() & kept.key_shares.keys() == {1}


def _advertise_low_order(rig):
    """Client 4 has for c the point of order two."""
    session = rig.clients[CHEAT]
    session.advertise()
    low = advertise_as(session, bytes(32), session._answers.advertised.s_public)
    session._answers.advertised = low
    return low


def test_a_key_of_low_order(make_rig):
    rig = make_rig(4)
    low = _advertise_low_order(rig)
    refused = rig.refused("low-order-point", rig.server, lambda: rig.server.receive_advertisement(low))
    assert refused.peer == CHEAT


def test_without_the_check_of_the_server_all_others_leave(make_rig, monkeypatch):
    rig = make_rig(4)
    low = _advertise_low_order(rig)
    with monkeypatch.context() as patch:
        patch.setattr(inspection, "check_advertisement", lambda *_: None)
        rig.server.receive_advertisement(low)
    rig.advertise([1, 2, 3])
    for i in (1, 2, 3):
        session, cohort = rig.clients[i], rig.server.advertised(i)
        rig.refused("low-order-point", session, lambda: session.share_keys(cohort))  # noqa: B023 - called at once
    assert not rig.server.blamed
