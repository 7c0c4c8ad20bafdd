"""Messages as values: their digests tell any two apart, and their kinds too."""

from __future__ import annotations

import dataclasses

import pytest

from fedcore.errors import ProtocolViolation
from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
    Dealing,
    KeyShares,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.secagg.crypto.tree import Tree
from fedcore.secagg.messages import input_digest

ADVERTISEMENT = Advertisement(1, b"c" * 32, b"s" * 32, b"g" * 64)
MESSAGES = [
    ADVERTISEMENT,
    KeyShares(1, b"m" * 32, b"o" * 32, {2: b"s" * 114, 3: b"t" * 114}, {2: b"p" * 48}, b"g" * 64, b"q" * 128),
    ShareDelivery((1, 2, 3), {2: b"s" * 114, 3: b"t" * 114}, {3: b"p" * 48}),
    Dealing(1, b"m" * 32, b"g" * 64, b"q" * 128, (b"h" * 32, b"i" * 32)),
    Survivors((1, 2, 3), b"c" * 32),
    ConsistencySignature(1, b"g" * 64),
    SignatureSet({1: b"g" * 64, 2: b"h" * 64}),
    UnmaskShares(1, {1: bytes(33)}, {2: bytes(33)}),
]


def _others(value):
    """Values that differ in the least."""
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, bytes):
        return [value[:-1] + bytes([value[-1] ^ 1])]
    if isinstance(value, tuple) and isinstance(value[0], bytes):
        return [value[1:], *((part, *value[1:]) for part in _others(value[0]))]
    if isinstance(value, tuple):
        return [value[1:], (*value[1:], value[0] + 8)]
    first = next(iter(value))
    rest = {key: part for key, part in value.items() if key != first}
    return [rest, {**rest, first + 8: value[first]}, *({**value, first: part} for part in _others(value[first]))]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_the_digest_depends_on_every_field(message):
    message.check()
    digests = {message.digest()}
    count = 1
    for field in dataclasses.fields(message):
        for value in _others(getattr(message, field.name)):
            digests.add(dataclasses.replace(message, **{field.name: value}).digest())
            count += 1
    assert len(digests) == count


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_the_shape_of_every_entry_is_looked_at(message):
    """By the message itself: what comes after it may take an entry for what it says it is."""
    for field in dataclasses.fields(message):
        entries = getattr(message, field.name)
        for key, value in entries.items() if isinstance(entries, dict) else ():
            for bad in (value[:-1], value + b"\0", bytearray(value), None):
                wrong = dataclasses.replace(message, **{field.name: {**entries, key: bad}})
                with pytest.raises(ProtocolViolation, match="malformed"):
                    wrong.check()


def _cohort(shown=(1, 3), *, ids=(1, 2, 3, 4, 5), altered=0):
    """Some of five advertisements, one of them altered, with their proof."""
    entries = {
        i: dataclasses.replace(ADVERTISEMENT, client_id=i, s_public=bytes([i + 8 * (i == altered)]) * 32) for i in ids
    }
    proof = Tree([entries[i].digest() for i in ids]).prove([ids.index(i) for i in shown])
    return AdvertisedCohort(ids, tuple(entries[i] for i in shown), proof)


def test_the_digest_of_a_cohort_depends_on_its_ids_its_members_and_what_it_proves():
    honest = _cohort()
    honest.check()
    others = [
        _cohort(ids=(1, 2, 3, 4, 6)),
        _cohort(ids=(1, 2, 3, 4)),
        _cohort(altered=3),
        _cohort(altered=5),
        _cohort(shown=(1, 3, 4)),
        _cohort(shown=(3,)),
        dataclasses.replace(honest, proof=(bytes(32), *honest.proof[1:])),
        # Another name for a client whose keys are not shown: the tree is the same.
        dataclasses.replace(honest, ids=(1, 2, 3, 4, 6)),
    ]
    assert len({message.digest() for message in (honest, *others)}) == 1 + len(others)


def test_two_clients_that_see_different_members_see_the_same_root():
    views = [_cohort(shown) for shown in ((1, 3), (2, 4, 5), (1, 2, 3, 4, 5))]
    assert len({view.root() for view in views}) == 1
    assert _cohort(altered=2).root() != views[0].root()
    assert views[2].proof == ()


def test_the_digest_of_a_vector_depends_on_its_sender():
    assert len({input_digest(1, bytes(32)), input_digest(2, bytes(32)), input_digest(1, b"d" * 32)}) == 3


def test_messages_of_two_kinds_are_two_messages():
    """Although they hold the same."""
    assert ConsistencySignature(1, bytes(64)).digest() != input_digest(1, bytes(64))
    assert SignatureSet({}).digest() != Survivors(()).digest()


def test_the_digest_does_not_depend_on_the_order_of_a_mapping():
    assert SignatureSet({1: b"g" * 64, 2: b"h" * 64}).digest() == SignatureSet({2: b"h" * 64, 1: b"g" * 64}).digest()


def test_shares_and_ciphertexts_are_not_in_a_repr():
    assert repr(MESSAGES[-1]) == "UnmaskShares(client_id=1)"
    assert repr(MESSAGES[2]) == "ShareDelivery(sharers=(1, 2, 3))"
    assert repr(MESSAGES[6]) == "SignatureSet()"
    for field in ("shares", "pair_secrets"):
        assert field not in repr(MESSAGES[1])
