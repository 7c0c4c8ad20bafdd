"""Truncated, oversized and malformed messages at every step, and parameters that cannot be safe."""

from __future__ import annotations

import dataclasses

import pytest

from fedcore.errors import ConfigurationError, ProtocolViolation
from fedcore.secagg import (
    Advertisement,
    ConsistencySignature,
    RoundParameters,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.secagg.sizing import withstands
from tests.support.raising import raises


def _misshapen(value):
    """Wrong versions of one field of a message."""
    if isinstance(value, bytes):
        wrong = [value + b"\0", bytearray(value), value.hex(), None]
        return [value[:-1], b"", *wrong] if value else wrong  # what is empty is left out
    if isinstance(value, bool | int):
        return [0, -1, 2**63, True, 1.0, "1", None]
    if isinstance(value, tuple):
        wrong = [list(value), (*value, None), (0, *value), None]
        # Hashes in another order are as good hashes as before.
        return wrong if not value or isinstance(value[0], bytes) else [*wrong, (), tuple(reversed(value))]
    some = next(iter(value))
    return [
        None,
        list(value),
        {**value, 0: value[some]},
        {**value, "1": value[some]},
        *({**value, some: bad} for bad in _misshapen(value[some])),
    ]


def _steps(rig):
    """Each message of a round with its receiver, in order; the rig moves on as they are asked for.

    The client is one that chooses a secret and has one chosen for it, so that no message of it is empty.
    """
    session, server = rig.clients[1], rig.server
    yield server, server.receive_advertisement, session.advertise()
    rig.advertise()
    cohort = server.advertised(1)
    yield session, session.share_keys, cohort
    yield server, server.receive_shares, session.share_keys(cohort)
    rig.share()
    yield session, session.receive_shares, server.delivery(1)
    rig.deliver()
    rig.upload(set(rig.ids) - {rig.graph().neighbours(1)[0]})
    yield session, session.sign_survivors, server.survivors()
    yield server, server.receive_consistency, session.sign_survivors(server.survivors())
    rig.sign()
    yield session, session.unmask, server.signatures()
    yield server, server.receive_unmask, session.unmask(server.signatures())
    rig.unmask()


@pytest.mark.parametrize("client", [0, -1, 2**63, True, 1.0, "1", None])
def test_a_masked_vector_of_no_client_is_malformed(any_rig, client):
    rig = any_rig().until("upload")
    rig.refused("malformed", rig.server, lambda: rig.server.receive_input(client, bytes(32)))
    rig.go_on("upload")


def test_no_misshapen_message_moves_anything(any_rig):
    rig = any_rig()
    tried = 0
    for machine, receive, honest in _steps(rig):
        for field in dataclasses.fields(honest):
            for bad in _misshapen(getattr(honest, field.name)):
                message = dataclasses.replace(honest, **{field.name: bad})
                rig.refused("malformed", machine, lambda receive=receive, message=message: receive(message))
                tried += 1
    assert tried > 130
    rig.assert_sum(rig.server.survivors().survivors)


def test_misshapen_members_of_a_cohort(any_rig):
    rig = any_rig().until("share")
    session, honest = rig.clients[1], rig.server.advertised(1)
    place = next(k for k, member in enumerate(honest.members) if member.client_id != 1)
    for field in dataclasses.fields(Advertisement):
        for bad in _misshapen(getattr(honest.members[place], field.name)):
            entry = dataclasses.replace(honest.members[place], **{field.name: bad})
            members = (*honest.members[:place], entry, *honest.members[place + 1 :])
            cohort = dataclasses.replace(honest, members=members)
            rig.refused("malformed", session, lambda cohort=cohort: session.share_keys(cohort))
    rig.go_on("share")


def test_every_hash_of_a_proof_is_looked_at(make_rig):
    rig = make_rig.ring().until("share")
    session, honest = rig.clients[1], rig.server.advertised(1)
    assert len(honest.proof) > 1
    for place, value in enumerate(honest.proof):
        for bad in (bytearray(value), value[:-1], None):
            proof = (*honest.proof[:place], bad, *honest.proof[place + 1 :])
            cohort = dataclasses.replace(honest, proof=proof)
            rig.refused("malformed", session, lambda cohort=cohort: session.share_keys(cohort))


@pytest.mark.parametrize("mapping", ["shares", "pair_secrets"])
def test_every_entry_of_a_mapping_is_looked_at(make_rig, mapping):
    """Not only the first."""
    rig = make_rig(5).until("deliver")
    honest = rig.server.delivery(1)
    for client_id, sealed in getattr(honest, mapping).items():
        bad = dataclasses.replace(honest, **{mapping: {**getattr(honest, mapping), client_id: sealed[:-1]}})
        rig.refused("malformed", rig.clients[1], lambda bad=bad: rig.clients[1].receive_shares(bad))


def test_a_share_outside_the_field(make_rig):
    rig = make_rig(3).until("unmask")
    honest = rig.clients[1].unmask(rig.server.signatures())
    for raw in ((2**256 + 297).to_bytes(33, "big"), b"\xff" * 33):
        bad = UnmaskShares(1, {**honest.self_shares, 2: raw}, {})
        rig.refused("malformed", rig.server, lambda bad=bad: rig.server.receive_unmask(bad))
    rig.go_on("unmask")


@pytest.mark.parametrize("digest", [b"", bytes(31), bytes(33), "00" * 32, None])
def test_a_digest_of_the_wrong_size(make_rig, digest):
    rig = make_rig(3).until("upload")
    rig.refused("malformed", rig.server, lambda: rig.server.receive_input(1, digest))
    rig.go_on("upload")


# The largest and the smallest that there may be

LARGEST_ID, LARGEST_COHORT = 2**63 - 1, 2**16


@pytest.mark.parametrize(
    "message",
    [
        Survivors((1,)),
        Survivors((1, LARGEST_ID)),
        Survivors(tuple(range(1, LARGEST_COHORT + 1))),
        SignatureSet({}),
        SignatureSet({1: bytes(64), LARGEST_ID: bytes(64)}),
        SignatureSet(dict.fromkeys(range(1, LARGEST_COHORT + 1), bytes(64))),
        ConsistencySignature(1, bytes(64)),
        ConsistencySignature(LARGEST_ID, bytes(64)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_up_to_the_largest_are_taken(message):
    message.check()


@pytest.mark.parametrize(
    "message",
    [
        Survivors(()),
        Survivors((0, 1)),
        Survivors((1, LARGEST_ID + 1)),
        Survivors((1, 2.0)),
        Survivors(tuple(range(1, LARGEST_COHORT + 2))),
        SignatureSet({LARGEST_ID + 1: bytes(64)}),
        SignatureSet({1: bytes(64), 0: bytes(64)}),
        SignatureSet(dict.fromkeys(range(1, LARGEST_COHORT + 2), bytes(64))),
        ConsistencySignature(0, bytes(64)),
        ConsistencySignature(LARGEST_ID + 1, bytes(64)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_beyond_the_largest(message):
    with pytest.raises(ProtocolViolation, match="malformed"):
        message.check()


@pytest.mark.parametrize(
    "changed",
    [
        {"cohort": (1, 2), "quorum": 2, "threshold": 2, "degree": 1},
        {"cohort": (1, 2, 3, 4, LARGEST_ID)},
        {
            "cohort": tuple(range(1, LARGEST_COHORT + 1)),
            "quorum": LARGEST_COHORT,
            "threshold": LARGEST_COHORT,
            "degree": LARGEST_COHORT - 1,
        },
        {"quorum": 5},
        {"quorum": 5, "threshold": 5},
        {"quorum": 3, "threshold": 3},
        {"quorum": 5, "threshold": 5, "corrupt": 4},
        {"words": 1},
        {"words": 2**40},
        {"round": 0},
        {"round": LARGEST_ID},
        {"encoding": b""},
    ],
    ids=",".join,
)
def test_parameters_on_the_safe_side_of_each_bound(make_rig, changed):
    parameters = dataclasses.replace(make_rig(5).parameters, **changed)
    assert parameters.full_graph
    assert all(getattr(parameters, name) == value for name, value in changed.items())


# Parameters


def _refused_as_parameters(honest, changed, says):
    """As a configuration error of our own, and by name where they come from a peer."""
    fields = {field.name: getattr(honest, field.name) for field in dataclasses.fields(honest)} | changed
    check, *numbers = says.split()
    with raises(ConfigurationError, check=check, numbers=numbers):
        RoundParameters(**fields)
    with raises(ProtocolViolation, check="bad-parameters", reason=check, numbers=numbers):
        RoundParameters.from_peer(**fields)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cohort": (1,), "quorum": 1, "threshold": 1, "degree": 0}, "cohort-size"),
        ({"threshold": 2}, "threshold-too-low 3"),
        ({"threshold": 3, "corrupt": 1}, "threshold-too-low 4"),
        ({"quorum": 2}, "quorum-too-low 2 3"),
        ({"quorum": 3, "threshold": 3, "corrupt": 1}, "quorum-too-low 3 4"),
        ({"quorum": 6}, "quorum-too-high 6 5"),
        ({"threshold": 5}, "threshold-too-high 5 4"),
        ({"degree": 3, "threshold": 3}, "degree 4"),
        ({"degree": 5, "threshold": 3}, "degree 4"),
        ({"degree": 0, "threshold": 3}, "degree 4"),
        ({"cohort": (1, 2, 3, 4, 4)}, "duplicate"),
        ({"cohort": (0, 1, 2, 3, 4)}, "id"),
        ({"cohort": (1, 2, 3, 4, 2**63)}, "id"),
        ({"cohort": (2, 1, 3, 4, 5)}, "order"),
        ({"cohort": (True, 2, 3, 4, 5)}, "id"),
        ({"cohort": (1.0, 2, 3, 4, 5)}, "id"),
        ({"cohort": [1, 2, 3, 4, 5]}, "cohort-type"),
        ({"cohort": tuple(range(1, 2**16 + 2))}, "cohort-size 65536"),
        ({"model_hash": b"short"}, "model_hash 32"),
        ({"roster_hash": bytearray(32)}, "roster_hash 32"),
        ({"task_hash": None}, "task_hash 32"),
        ({"task_hash": bytes(33)}, "task_hash 32"),
        ({"words": 0}, "words"),
        ({"words": 2**40 + 1}, "words"),
        ({"round": -1}, "round"),
        ({"round": 2**63}, "round"),
        ({"round": True}, "round"),
        ({"quorum": 4.0}, "quorum"),
        ({"degree": "4"}, "degree"),
        ({"threshold": None}, "threshold"),
        ({"corrupt": -1}, "corrupt"),
        ({"run": ""}, "run"),
        ({"federation": 3}, "federation"),
        ({"encoding": "text"}, "encoding"),
        ({"agreement": "x25519"}, "agreement"),
        ({"agreement": None}, "agreement"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_parameters_that_cannot_be_safe(make_rig, changed, says):
    _refused_as_parameters(make_rig(5).parameters, changed, says)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"degree": 5}, "degree"),
        ({"degree": 7}, "degree"),
        ({"degree": 8, "threshold": 6}, "degree"),
        ({"degree": 10, "threshold": 8}, "degree"),
        ({"degree": 0, "threshold": 1}, "degree"),
        ({"threshold": 8}, "threshold-too-high 8 7"),
        ({"threshold": 4}, "split 4 6 0"),
        ({"corrupt": 2}, "split 5 6 2"),
        ({"corrupt": 4, "threshold": 6}, "split 4"),
        ({"quorum": 6}, "quorum-too-low"),
        ({"corrupt": 5, "threshold": 7}, "quorum-too-low"),
    ],
)
def test_rings_that_cannot_be_safe(make_rig, changed, says):
    _refused_as_parameters(make_rig.ring().parameters, changed, says)


@pytest.mark.parametrize(
    "changed",
    [
        {"degree": 2, "threshold": 3},
        {"degree": 6, "threshold": 7},
        {"corrupt": 1},
        {"corrupt": 2, "threshold": 6},
        {"corrupt": 4, "threshold": 7},
        {"quorum": 13},
        {"quorum": 8},
        {"degree": 12, "threshold": 8},
    ],
)
def test_rings_on_the_safe_side_of_each_bound(make_rig, changed):
    parameters = dataclasses.replace(make_rig.ring().parameters, **changed)
    assert parameters.full_graph is (parameters.degree == 12)
    if not parameters.full_graph:
        found = {name: getattr(parameters, name) for name in ("corrupt", "degree", "threshold")}
        assert withstands(population=parameters.quorum, **found)


def test_parameters_of_a_peer_with_a_field_too_many_or_too_few(make_rig):
    with pytest.raises(ProtocolViolation, match="bad-parameters"):
        RoundParameters.from_peer(federation="f")
    parameters = make_rig(3).parameters
    fields = {field.name: getattr(parameters, field.name) for field in dataclasses.fields(parameters)}
    with pytest.raises(ProtocolViolation, match="bad-parameters"):
        RoundParameters.from_peer(**fields, secrecy=0)
