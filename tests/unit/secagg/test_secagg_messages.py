"""Messages as values: their digests tell any two apart, and their kinds too."""

from __future__ import annotations

import dataclasses

import pytest

from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
    KeyShares,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.secagg.messages import input_digest

ADVERTISEMENT = Advertisement(1, b"c" * 32, b"s" * 32, b"g" * 64)
MESSAGES = [
    ADVERTISEMENT,
    AdvertisedCohort((ADVERTISEMENT,)),
    KeyShares(1, b"m" * 32, {2: b"s" * 82, 3: b"t" * 82}),
    ShareDelivery((1, 2, 3), {2: b"s" * 82, 3: b"t" * 82}),
    Survivors((1, 2, 3)),
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
    if isinstance(value, tuple):
        changed = value[0].client_id if isinstance(value[0], Advertisement) else value[0]
        first = dataclasses.replace(value[0], client_id=changed + 8) if changed is not value[0] else value[0] + 8
        return [value[1:], (*value[1:], first)]
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


def test_the_digest_of_a_vector_depends_on_its_sender():
    assert len({input_digest(1, bytes(32)), input_digest(2, bytes(32)), input_digest(1, b"d" * 32)}) == 3


def test_the_digest_does_not_depend_on_the_order_of_a_mapping():
    assert SignatureSet({1: b"g" * 64, 2: b"h" * 64}).digest() == SignatureSet({2: b"h" * 64, 1: b"g" * 64}).digest()


def test_shares_and_ciphertexts_are_not_in_a_repr():
    assert repr(MESSAGES[-1]) == "UnmaskShares(client_id=1)"
    assert "sealed" not in repr(MESSAGES[2])
