"""Whether two sides understand each other, by what each says of itself in the first contact."""

from __future__ import annotations

import hashlib
import json

import pytest

from fedcore.codec.encoding import QUERY_ENCODING_TAG
from fedcore.federation.admission.question import QUESTION_TAG
from fedcore.federation.transcript.chain import HEAD_TAG
from fedcore.federation.transcript.records import RECORD_TAG
from fedcore.run.groups import PLACE_TAG, PLACES_TAG, RING_TAG
from fedcore.wire.base import FirstContact
from fedcore.wire.forms import WIRE, our_forms, our_version, refusal, understands
from fedcore.wire.presence import JoinIn, JoinOut
from fedcore.wire.tasks import Task

FIELDS = {6: "4696369c"}
"""WIRE -> SHA-256 over the names of the fields, cut short, of what both sides have to read alike, and over `TAGS`."""
TAGS = (QUERY_ENCODING_TAG, RECORD_TAG, HEAD_TAG, PLACE_TAG, RING_TAG, PLACES_TAG, QUESTION_TAG)
"""Of what both sides sign or hash, as far as `our_forms` does not number them."""


def test_we_understand_ourselves() -> None:
    assert understands(our_version())


@pytest.mark.parametrize(
    "version", ["0.1.0", "", "1", our_forms(), "0.1.0 (forms 1.1.1.1.1)", f"{our_version()} ", f"({our_forms()})"]
)
def test_nobody_else_is_understood(version: str) -> None:
    assert not understands(version)


def test_another_release_of_the_same_forms_is_understood() -> None:
    assert understands(f"0.9.2 ({our_forms()})")


def test_both_versions_are_named() -> None:
    told = refusal(server=our_version(), client="0.1.0")
    assert our_version() in told
    assert "0.1.0 (from before forms were numbered)" in told


def test_a_peer_writes_nothing_onto_a_terminal() -> None:
    assert "\x1b" not in refusal(server="\x1b[31m0.1.0", client=our_version())


def test_a_changed_field_raises_the_number_of_the_wire() -> None:
    """Every field is sent, and an unknown one is refused: another set of them is another `fedcore.wire.forms.WIRE`.

    Names of classes are not sent, and so not part of the hash. In a first contact an unknown field is not read, so what
    a side may leave out of it needs no other number.
    """
    fields: set[tuple[str, ...]] = {TAGS}
    for kind in (Task, JoinIn, JoinOut):
        schema = kind.model_json_schema()
        key = "required" if issubclass(kind, FirstContact) else "properties"
        fields.add(tuple(sorted(schema[key])))
        for part in schema.get("$defs", {}).values():
            fields.add(tuple(sorted(part.get("properties", ()))))
    digest = hashlib.sha256(json.dumps(sorted(fields)).encode()).hexdigest()[:8]
    assert {WIRE: digest} == FIELDS, "raise WIRE, and write its hash here instead of the one before"
