"""A draw: places that nobody else chooses, parts of nearly equal size, and evidence that every member checks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import answers, draw_task, group_tasks, remembered
from support.records import FEDERATION, Notary, make_task

from fedcore.errors import ProtocolViolation, RoundFailed
from fedcore.run.groups import (
    WRONG_GROUP,
    check_group,
    check_ticket,
    cut_ring,
    is_draw,
    make_ticket,
    needed_tickets,
    tickets_digest,
)
from fedcore.wire.tasks import DrawTicket, GroupSpec, Task
from tests.support.raising import raises

CLIENTS = 9


@pytest.fixture(scope="module")
def notary() -> Notary:
    return Notary.of(CLIENTS)


def check(notary: Notary, task: Task, drawn: Any, client: int) -> None:
    check_group(task, drawn, federation=FEDERATION, client_id=client, keys=notary.roster.keys)


def refused(notary: Notary, task: Task, drawn: Any, client: int, reason: str, *numbers: int) -> None:
    with raises(ProtocolViolation, check=WRONG_GROUP, reason=reason, numbers=numbers):
        check(notary, task, drawn, client)


def honest(notary: Notary, **changes: Any) -> tuple[Task, list[DrawTicket], list[Task]]:
    draw = draw_task(notary, groups=3, least=3, **changes)
    places = answers(notary, draw, notary.keys)
    return draw, places, group_tasks(draw, places)


def test_every_member_accepts_the_group_that_it_is_in_and_no_other(notary: Notary) -> None:
    draw, places, tasks = honest(notary)
    assert is_draw(draw)
    assert not any(map(is_draw, tasks))
    assert sorted(client for task in tasks for client in task.cohort) == list(range(1, CLIENTS + 1))
    for task in tasks:
        for client in task.cohort:
            check(notary, task, remembered(draw, places, client), client)
    other = tasks[1].model_copy(update={"cohort": tasks[0].cohort})
    refused(notary, other, remembered(draw, places, tasks[0].cohort[0]), tasks[0].cohort[0], "stranger", 2, 3)


@given(n=st.integers(1, 40), groups=st.integers(2, 12), least=st.integers(1, 9))
def test_the_ring_is_cut_into_nearly_equal_parts_of_at_least_the_least_size(n: int, groups: int, least: int) -> None:
    places = [
        DrawTicket(client_id=client, nonce=bytes([client] * 32), signature=bytes(64)) for client in range(1, n + 1)
    ]
    cut = GroupSpec(groups=groups, least=least)
    if n < least:
        with raises(RoundFailed, numbers=(n, least)):
            cut_ring(bytes(32), places, cut)
        return
    parts = cut_ring(bytes(32), places, cut)
    sizes = list(map(len, parts))
    assert len(parts) == min(groups, n // least)
    assert min(sizes) >= least
    assert max(sizes) - min(sizes) <= 1
    assert sorted(client for part in parts for client in part) == list(range(1, n + 1))
    assert parts == cut_ring(bytes(32), places[::-1], cut), "not by the order in which the answers came"


def test_nobody_elses_choice_moves_a_place_and_another_draw_gives_other_groups(notary: Notary) -> None:
    groupings = {
        tuple(map(tuple, (task.cohort for task in honest(notary, exchange=exchange)[2]))) for exchange in (1, 5, 9, 13)
    }
    assert len(groupings) > 1, "the same bytes stand elsewhere in another draw"


def test_a_signature_is_for_one_draw_of_one_federation_and_of_its_client(notary: Notary) -> None:
    draw, places, _ = honest(notary)
    digest, keys = draw.digest(), notary.roster.keys
    check_ticket(FEDERATION, digest, places[0], keys)
    another = draw_task(notary, groups=3, least=3, run="another run")
    for federation, told, place in (
        ("another federation", digest, places[0]),
        (FEDERATION, another.digest(), places[0]),
        (FEDERATION, digest, places[0].model_copy(update={"nonce": bytes(32)})),
        (FEDERATION, digest, places[0].model_copy(update={"client_id": 2})),
        (FEDERATION, digest, places[0].model_copy(update={"client_id": 99})),
    ):
        with raises(ProtocolViolation, check=WRONG_GROUP, reason="unsigned"):
            check_ticket(federation, told, place, keys)


def test_a_forged_answer_is_refused_by_everybody(notary: Notary) -> None:
    draw, places, _ = honest(notary)
    forged = [*places[:-1], places[-1].model_copy(update={"nonce": bytes(32)})]
    for task in group_tasks(draw, forged):
        for client in task.cohort:
            if client != CLIENTS:
                refused(notary, task, remembered(draw, places, client), client, "unsigned", 9)


def test_whose_answer_is_left_out_or_exchanged_refuses(notary: Notary) -> None:
    draw, places, _ = honest(notary)
    left_out = places[1:]
    task = next(task for task in group_tasks(draw, left_out) if 2 in task.cohort)
    check(notary, task, remembered(draw, places, 2), 2)
    refused(notary, task, remembered(draw, places, 1), 1, "own-answer")
    second = make_ticket(FEDERATION, draw.digest(), notary.keys[1])
    again = [DrawTicket(client_id=1, nonce=second.nonce, signature=second.signature), *places[1:]]
    task = next(task for task in group_tasks(draw, again) if 1 in task.cohort)
    refused(notary, task, remembered(draw, places, 1), 1, "own-answer")


def test_a_server_cannot_hide_more_answers_than_a_quorum_may_lack(notary: Notary) -> None:
    draw, places, _ = honest(notary)
    least = needed_tickets(CLIENTS)
    assert least == 7
    for count in (least, least - 1):
        shown = places[:count]
        task = next(task for task in group_tasks(draw, shown) if 1 in task.cohort)
        if count == least:
            check(notary, task, remembered(draw, places, 1), 1)
        else:
            refused(notary, task, remembered(draw, places, 1), 1, "too-few-answers", 6, 9, 7)


def test_a_cohort_may_lack_members_of_its_group_down_to_the_least_size(notary: Notary) -> None:
    draw = draw_task(notary, groups=2, least=3)
    places = answers(notary, draw, notary.keys)
    task = max(group_tasks(draw, places), key=lambda task: len(task.cohort))
    client = task.cohort[0]
    assert len(task.cohort) == 5
    smaller = task.model_copy(update={"cohort": task.cohort[:3]})
    check(notary, smaller, remembered(draw, places, client), client)
    smallest = task.model_copy(update={"cohort": task.cohort[:2]})
    refused(notary, smallest, remembered(draw, places, client), client, "too-small", 3)


def test_a_draw_is_good_for_its_own_model_cut_and_run_only(notary: Notary) -> None:
    draw, places, tasks = honest(notary)
    task = tasks[0]
    client = task.cohort[0]
    drawn = remembered(draw, places, client)
    assert task.model is not None
    assert task.group is not None
    refused(notary, task, None, client, "not-answered")
    refused(notary, make_task(2), drawn, client, "no-draw")
    other = {"model": task.model.model_copy(update={"sha256": "00" * 32})}
    refused(notary, task.model_copy(update=other), drawn, client, "other-draw")
    refused(notary, task.model_copy(update={"cut": GroupSpec(groups=2, least=3)}), drawn, client, "other-draw")
    refused(notary, task.model_copy(update={"run": "another"}), drawn, client, "not-answered")
    replayed = draw_task(notary, groups=3, least=3, run="another")
    old = group_tasks(replayed, answers(notary, replayed, notary.keys))[0].model_copy(update={"run": "run"})
    refused(notary, old, drawn, client, "not-answered")


def test_the_numbers_and_the_hash_of_a_group_follow_from_the_answers(notary: Notary) -> None:
    draw, places, tasks = honest(notary)
    client = tasks[0].cohort[0]
    drawn = remembered(draw, places, client)

    def changed(**fields: Any) -> Task:
        assert tasks[0].group is not None
        return tasks[0].model_copy(update={"group": tasks[0].group.model_copy(update=fields)})

    refused(notary, changed(of=4), drawn, client, "numbers", 1, 4, 3)
    refused(notary, changed(number=4), drawn, client, "numbers", 4, 3)
    refused(notary, changed(places="00" * 32), drawn, client, "answers-hash")
    doubled = tasks[0].model_copy(update={"places": [places[0], *places]})
    refused(notary, doubled, drawn, client, "answers")


def test_what_all_clients_are_told_holds_the_group_and_the_hash_of_the_answers_not_these(notary: Notary) -> None:
    draw, places, tasks = honest(notary)
    assert tasks[0].digest() != tasks[1].digest()
    assert tasks[0].group is not None
    assert tasks[0].group.places == tickets_digest(places)
    assert "places" not in tasks[0].content()
    assert {"cut", "group"} & make_task(1).content().keys() == set(), "who knows nothing of groups sees no difference"
    assert Task.model_validate_json(tasks[0].model_dump_json()) == tasks[0]
    assert Task.model_validate_json(draw.model_dump_json()).digest() == draw.digest()
