"""Draws of groups against tests/vectors/draw_v1.json, which was made without fedcore."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.records import make_task

from fedcore.errors import ProtocolViolation
from fedcore.run.groups import (
    WRONG_GROUP,
    GroupAssignmentRecord,
    check_group,
    check_ticket,
    cut_ring,
    make_ticket,
    statement,
    tickets_digest,
)
from fedcore.wire.tasks import DrawTicket, Group, GroupSpec, Task
from tests.support.raising import raises

VECTORS = Path(__file__).parents[2] / "vectors"
KEPT = json.loads((VECTORS / "draw_v1.json").read_text(encoding="utf-8"))
DRAWS = [pytest.param(draw, id=draw["name"]) for draw in KEPT["draws"]]
REASONS = {
    "a stranger in the cohort": "stranger",
    "the cohort of another group": "stranger",
    "a number beyond the groups": "numbers",
    "more groups than there are": "numbers",
    "a cohort that is too small": "too-small",
    "a hash of other answers": "answers-hash",
    "the receiver left out": "own-answer",
    "other bytes in the receiver's name": "own-answer",
    "bytes that nobody signed": "unsigned",
    "a signature of somebody else": "unsigned",
    "a signature for another federation": "unsigned",
    "a signature for another draw": "unsigned",
    "a client that is not on the roster": "unsigned",
    "an answer twice": "answers",
    "answers in another order": "answers",
    "too few answers": "too-few-answers",
}
"""Why a client refuses each lie in the file."""

Draw = Mapping[str, Any]


def places_of(answers: Sequence[Mapping[str, Any]]) -> list[DrawTicket]:
    return [
        DrawTicket(
            client_id=one["client"], nonce=bytes.fromhex(one["nonce"]), signature=bytes.fromhex(one["signature"])
        )
        for one in answers
    ]


def keys_of(draw: Draw) -> dict[int, Ed25519PrivateKey]:
    return {
        one["client"]: Ed25519PrivateKey.from_private_bytes(bytes.fromhex(one["identity"])) for one in draw["answers"]
    }


def check(draw: Draw, client: int, told: Mapping[str, Any]) -> None:
    """What a client of a draw does with the task of a group."""
    cut = GroupSpec(**draw["cut"])
    group = Group(draw=draw["draw"], exchange=1, places=told["places"], number=told["number"], of=told["of"])
    task = make_task(2, cohort=told["cohort"], cut=cut, group=group, places=places_of(told["answers"]))
    check_group(
        task,
        remembered(draw, client, task, cut),
        federation=draw["federation"],
        client_id=client,
        keys={member: key.public_key().public_bytes_raw() for member, key in keys_of(draw).items()},
    )


def remembered(draw: Draw, client: int, task: Task, cut: GroupSpec) -> GroupAssignmentRecord:
    (nonce,) = (one["nonce"] for one in draw["answers"] if one["client"] == client)
    return GroupAssignmentRecord(
        run=task.run,
        exchange=1,
        digest=draw["draw"],
        purpose=task.purpose,
        model=task.subject_model,
        asked=draw["asked"],
        cut=cut,
        nonce=nonce,
    )


@pytest.mark.parametrize("draw", DRAWS)
def test_answers(draw: Draw) -> None:
    digest, keys = bytes.fromhex(draw["draw"]), keys_of(draw)
    public = {client: key.public_key().public_bytes_raw() for client, key in keys.items()}
    for one, place in zip(draw["answers"], places_of(draw["answers"]), strict=True):
        assert statement(draw["federation"], digest, place.nonce).hex() == one["statement"]
        made = make_ticket(
            draw["federation"], digest, keys[one["client"]], randomness=lambda size, place=place: place.nonce[:size]
        )
        assert (made.nonce, made.signature) == (place.nonce, place.signature)
        check_ticket(draw["federation"], digest, place, public)


@pytest.mark.parametrize("draw", DRAWS)
def test_order_groups_and_hash(draw: Draw) -> None:
    digest, places = bytes.fromhex(draw["draw"]), places_of(draw["answers"])
    alone = cut_ring(digest, places, GroupSpec(groups=len(places), least=1))
    assert [client for (client,) in alone] == draw["order"], "groups of one are the order on the ring"
    assert cut_ring(digest, places, GroupSpec(**draw["cut"])) == draw["groups"]
    assert tickets_digest(places) == draw["places"]


@pytest.mark.parametrize("draw", DRAWS)
def test_every_member_accepts_its_group(draw: Draw) -> None:
    for number, members in enumerate(draw["groups"], start=1):
        task = {"places": draw["places"], "number": number, "of": len(draw["groups"]), "cohort": members}
        for client in members:
            check(draw, client, {"answers": draw["answers"], **task})


@pytest.mark.parametrize("lie", [pytest.param(lie, id=lie["lie"]) for lie in KEPT["refused"]])
def test_a_lie_is_refused(lie: Mapping[str, Any]) -> None:
    with raises(ProtocolViolation, check=WRONG_GROUP, reason=REASONS[lie["lie"]]):
        check(KEPT["draws"][0], lie["to"], lie)


def test_the_file_is_what_its_script_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 of the draw: whatever changes these bytes is a new version."""
    assert {lie["lie"] for lie in KEPT["refused"]} == REASONS.keys()
    monkeypatch.syspath_prepend(VECTORS)
    assert importlib.import_module("make_draw_v1").build() == KEPT
