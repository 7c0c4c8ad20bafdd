"""Lies about what is sealed: shares and pair secrets replayed, moved, left out, or of another agreement."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from fedcore.secagg import Agreement, ShareDelivery
from fedcore.secagg.crypto import shamir

FIELDS = ["shares", "pair_secrets"]


def _with(message, field, client_id, sealed):
    """The message with one entry of `shares` or `pair_secrets` exchanged or added."""
    return dataclasses.replace(message, **{field: {**getattr(message, field), client_id: sealed}})


def _without(message, field, client_id):
    left = {i: sealed for i, sealed in getattr(message, field).items() if i != client_id}
    return dataclasses.replace(message, **{field: left})


def _refused(rig, check, client_id, message):
    session = rig.clients[client_id]
    return rig.refused(check, session, lambda: session.receive_shares(message))


def _two_choosers(rig):
    """A client for which two neighbours chose a secret, and these two."""
    for reader in rig.ids:
        choosers = [i for i in rig.graph().neighbours(reader) if rig.graph().chooses(i, reader)]
        if len(choosers) >= 2:
            return reader, *choosers[:2]
    raise AssertionError("nobody has two choosers")


# 6 replayed across rounds, pairs and purposes


@pytest.mark.parametrize("field", FIELDS)
def test_what_another_sender_or_round_sealed(any_rig, field):
    rig = any_rig().until("deliver")
    reader, one, two = _two_choosers(rig)
    honest = rig.server.delivery(reader)
    entries = getattr(honest, field)
    earlier = any_rig(round=9).until("deliver")
    elsewhere = next(iter(getattr(earlier.server.delivery(reader), field).values()))
    for sealed in (entries[two], elsewhere, bytes(len(entries[one]))):
        violation = _refused(rig, "share-unsealing", reader, _with(honest, field, one, sealed))
        assert violation.peer == one
    swapped = _with(_with(honest, field, one, entries[two]), field, two, entries[one])
    _refused(rig, "share-unsealing", reader, swapped)
    rig.go_on("deliver")


@pytest.mark.parametrize("field", FIELDS)
def test_what_was_sealed_for_another_receiver(any_rig, field):
    rig = any_rig().until("deliver")
    graph = rig.graph()
    sender, reader = next((i, v) for i in rig.ids for v in graph.neighbours(i) if graph.chooses(i, v))
    others = [i for i in graph.neighbours(sender) if i != reader and (field == "shares" or graph.chooses(sender, i))]
    honest = rig.server.delivery(reader)
    for other in others:
        sealed = getattr(rig.server.delivery(other), field)[sender]
        violation = _refused(rig, "share-unsealing", reader, _with(honest, field, sender, sealed))
        assert violation.peer == sender
    assert others
    rig.go_on("deliver")


def test_the_same_pair_in_the_other_direction(any_rig):
    rig = any_rig().until("deliver")
    neighbour = rig.graph().neighbours(1)[0]
    own = rig.server.delivery(neighbour).shares[1]
    _refused(rig, "share-unsealing", 1, _with(rig.server.delivery(1), "shares", neighbour, own))
    rig.go_on("deliver")


def test_same_keys_but_another_context_or_cohort_do_not_open(any_rig):
    """The binding itself, apart from the fresh keys of every round."""
    rig = any_rig().until("deliver")
    session, honest = rig.clients[1], rig.server.delivery(1)
    for changed in ({"context": bytes(32)}, {"cohort": bytes(32)}):
        transcript = session._transcript
        session._transcript = dataclasses.replace(transcript, **changed)
        _refused(rig, "share-unsealing", 1, honest)
        session._transcript = transcript
    rig.go_on("deliver")


@pytest.mark.parametrize("field", FIELDS)
def test_every_part_of_a_hybrid_sealing_counts(make_rig, field):
    """Ciphertext, text and tag. ML-KEM itself has no error: an altered ciphertext decapsulates to another secret."""
    rig = make_rig(5, agreement=Agreement.HYBRID).until("deliver")
    reader, one, two = _two_choosers(rig)
    honest = rig.server.delivery(reader)
    sealed = getattr(honest, field)[one]
    start = len(sealed) - 1088 - (48 if field == "pair_secrets" else 82)
    for place in (start, 500, start + 1087, start + 1088, len(sealed) - 1):
        altered = bytearray(sealed)
        altered[place] ^= 1
        violation = _refused(rig, "share-unsealing", reader, _with(honest, field, one, bytes(altered)))
        assert violation.peer == one
    # A true ciphertext for this very reader, but from another sealing.
    mixed = sealed[:start] + getattr(honest, field)[two][start : start + 1088] + sealed[start + 1088 :]
    _refused(rig, "share-unsealing", reader, _with(honest, field, one, mixed))
    rig.go_on("deliver")


# 8 for whom, and from whom


@pytest.mark.parametrize("field", FIELDS)
def test_a_delivery_with_an_entry_missing_or_too_many(any_rig, field):
    rig = any_rig().until("deliver")
    reader, one, _ = _two_choosers(rig)
    honest = rig.server.delivery(reader)
    _refused(rig, "wrong-recipients", reader, _without(honest, field, one))
    sealed = getattr(honest, field)[one]
    # From oneself, and of a neighbour for whom oneself chooses.
    for sender in {reader, *(i for i in rig.graph().neighbours(reader) if rig.graph().chooses(reader, i))}:
        if sender not in getattr(honest, field):
            _refused(rig, "wrong-recipients", reader, _with(honest, field, sender, sealed))
    rig.go_on("deliver")


def test_shares_of_a_client_that_is_no_neighbour(make_rig):
    rig = make_rig.ring().until("deliver")
    honest, near = rig.server.delivery(1), rig.graph().neighbours(1)
    stranger = next(i for i in rig.ids if i != 1 and i not in near)
    for field, sealed in (("shares", honest.shares[near[0]]), ("pair_secrets", bytes(48))):
        _refused(rig, "wrong-recipients", 1, _with(honest, field, stranger, sealed))
    rig.go_on("deliver")


def test_shares_without_their_sharer_or_a_sharer_without_shares(any_rig):
    """A neighbour's shares that come although it is not in U2, and the other way round."""
    rig = any_rig().until("deliver")
    honest, neighbour = rig.server.delivery(1), rig.graph().neighbours(1)[0]
    fewer = tuple(i for i in honest.sharers if i != neighbour)
    _refused(rig, "wrong-recipients", 1, dataclasses.replace(honest, sharers=fewer))
    left = _without(_without(honest, "shares", neighbour), "pair_secrets", neighbour)
    _refused(rig, "wrong-recipients", 1, left)
    rig.go_on("deliver")


def test_one_id_twice_and_one_left_out(any_rig):
    rig = any_rig().until("deliver")
    honest, last = rig.server.delivery(1), rig.ids[-1]
    for sharers, check in (
        ((*rig.ids, last), "duplicate-id"),
        (rig.ids[1:], "own-id-missing"),
        ((*rig.ids, last + 1), "sharers-not-advertised"),
    ):
        _refused(rig, check, 1, dataclasses.replace(honest, sharers=sharers))
    rig.go_on("deliver")


def test_a_client_that_dropped_out_before_is_no_sharer(any_rig):
    """On the roster and asked, but it never advertised."""
    rig = any_rig()
    lost = rig.ids[-1]
    rig.advertise(rig.ids[:-1])
    rig.share()
    _refused(
        rig, "sharers-not-advertised", 1, dataclasses.replace(rig.server.delivery(1), sharers=(*rig.ids[:-1], lost))
    )
    rig.go_on("deliver")


@pytest.mark.parametrize("field", FIELDS)
def test_the_server_wants_what_belongs_to_each_neighbour_and_no_one_else(any_rig, field):
    rig = any_rig().until("share")
    _, sender, _ = _two_choosers(rig)
    graph, honest = rig.graph(), rig.clients[sender].share_keys(rig.server.advertised(sender))
    receiver, sealed = next(iter(getattr(honest, field).items()))
    strangers = {sender, rig.ids[-1] + 1} | {i for i in rig.ids if i not in graph.neighbours(sender)}
    if field == "pair_secrets":
        strangers |= {i for i in graph.neighbours(sender) if graph.chooses(i, sender)}
    for bad in (
        _without(honest, field, receiver),
        dataclasses.replace(honest, **{field: {}}),
        *(_with(honest, field, stranger, sealed) for stranger in strangers),
    ):
        violation = rig.refused("wrong-recipients", rig.server, lambda bad=bad: rig.server.receive_shares(bad))
        assert violation.peer == sender
    rig.go_on("share")


# 14 sealed texts that are none


@pytest.mark.parametrize("field", FIELDS)
def test_sealed_for_the_other_agreement(any_rig, field):
    """One client's short ciphertext must stop neither its neighbours nor, at the end, the server."""
    rig = any_rig().until("share")
    _, sender, _ = _two_choosers(rig)
    message = rig.clients[sender].share_keys(rig.server.advertised(sender))
    hybrid = rig.parameters.agreement is Agreement.HYBRID
    entries = getattr(message, field)
    other = {receiver: sealed[1088:] if hybrid else bytes(1088) + sealed for receiver, sealed in entries.items()}
    for receiver in entries:
        bad = _with(message, field, receiver, other[receiver])
        violation = rig.refused("malformed", rig.server, lambda bad=bad: rig.server.receive_shares(bad))
        assert violation.peer == sender
    rig.share()
    for receiver in entries:
        told = _with(rig.server.delivery(receiver), field, sender, other[receiver])
        assert _refused(rig, "malformed", receiver, told).peer == sender
    rig.go_on("deliver")


@pytest.mark.parametrize("bad", [0, 1], ids=["of the mask root", "of the self secret"])
def test_a_sealed_text_that_is_no_share(make_rig, monkeypatch, bad):
    """A client that splits its secrets wrongly, and seals what it made."""
    rig = make_rig(3).until("share")
    split, calls = shamir.split, itertools.count()

    def split_wrongly(secret, *, holders, **keywords):
        shares = split(secret, holders=holders, **keywords)
        return (b"\xff" * 33,) * holders if next(calls) == bad else shares

    with monkeypatch.context() as patch:
        patch.setattr("fedcore.secagg.crypto.shamir.split", split_wrongly)
        rig.server.receive_shares(rig.clients[2].share_keys(rig.server.advertised(2)))
    rig.share([1, 3])
    assert _refused(rig, "uncommitted-share", 1, rig.server.delivery(1)).peer == 2


def test_no_second_delivery(any_rig):
    rig = any_rig().until("upload")
    session, delivery, neighbour = rig.clients[1], rig.server.delivery(1), rig.graph().neighbours(1)[0]
    fewer = tuple(i for i in rig.ids if i != neighbour)
    part = dataclasses.replace(
        _without(_without(delivery, "shares", neighbour), "pair_secrets", neighbour), sharers=fewer
    )
    rig.refused("second-delivery", session, lambda: session.receive_shares(part))
    # As many bytes, for the same clients.
    moved = _with(delivery, "shares", neighbour, bytes(len(delivery.shares[neighbour])))
    rig.refused("second-delivery", session, lambda: session.receive_shares(moved))
    session.receive_shares(ShareDelivery(delivery.sharers, dict(delivery.shares), dict(delivery.pair_secrets)))
    rig.go_on("upload")
