"""Every field of a task is decided on: it is in the question's digest, or something else binds it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from support.records import make_task

from fedcore.federation import Policy
from fedcore.federation.admission.question import COVERED, ELSEWHERE, question_digest
from fedcore.wire.tasks import Task

STOCK = Policy.default(4)
OTHERS: dict[str, Any] = {
    "server_round": 2,
    "message_type": "train.other",
    "aggregation": "plain",
    "run_config": {"lr": 0.1, "num-server-rounds": 3, "more": 1},
    "settings": {"clip-norm": 1.0},
    "arrays_key": "others",
    "configs": {"config": {"x": 2.0}},
    "weight_key": "hits",
}


def test_every_field_of_a_task_is_in_the_digest_or_bound_elsewhere() -> None:
    """Who adds a field decides here what binds it."""
    assert COVERED | ELSEWHERE.keys() == Task.model_fields.keys()
    assert not COVERED & ELSEWHERE.keys()


def test_each_covered_field_makes_another_question() -> None:
    assert OTHERS.keys() == COVERED
    asked = {name: question_digest(make_task(**{name: value}), STOCK) for name, value in OTHERS.items()}
    assert len({question_digest(make_task(), STOCK), *asked.values()}) == len(OTHERS) + 1


@pytest.mark.parametrize(
    "values",
    [(1, 1.0, True, "1", "1.0"), (0.0, -0.0), ([1], [1.0], [[1]]), (float("nan"), "nan", float("inf"))],
    ids=["types", "zeros", "lists", "not finite"],
)
def test_values_that_an_app_can_tell_apart_are_other_questions(values: tuple[Any, ...]) -> None:
    asked = [question_digest(make_task(configs={"config": {"x": value}}), STOCK) for value in values]
    assert all(one != two for one, two in combinations(asked, 2))


def test_the_record_of_a_key_counts() -> None:
    one, two = ({"a": {"x": 1}, "b": {}}, {"a": {}, "b": {"x": 1}})
    assert question_digest(make_task(configs=one), STOCK) != question_digest(make_task(configs=two), STOCK)


def test_what_the_owner_leaves_to_the_run_makes_no_other_question() -> None:
    more = make_task(run_config={"lr": 0.1, "num-server-rounds": 9})
    assert question_digest(more, STOCK) == question_digest(make_task(), STOCK)
    freer = Policy(min_cohort=3, min_threshold=3, allow_config={"lr": (0.0, 1.0), "fedcore.clip-norm": True, "x": True})
    other = make_task(
        run_config={"lr": 0.2, "num-server-rounds": 3}, settings={"clip-norm": 1.0}, configs={"config": {"x": 2}}
    )
    assert question_digest(other, freer) == question_digest(make_task(), freer)
    assert question_digest(other, STOCK) != question_digest(make_task(), STOCK)


def test_an_owner_may_leave_the_round_to_the_run() -> None:
    rounds = [make_task(server_round=n, configs={"config": {"server-round": n}}) for n in (1, 2)]
    assert len({question_digest(task, STOCK) for task in rounds}) == 2
    freer = Policy(min_cohort=3, min_threshold=3, allow_config={"server-round": (1, 9)})
    assert len({question_digest(task, freer) for task in rounds}) == 1


def test_a_rule_for_all_keys_leaves_free_messages_alone() -> None:
    """It is about the run config: what a strategy sends under other keys stays one question."""
    anything = Policy(min_cohort=3, min_threshold=3, allow_config={"*": True})
    asked = [make_task(configs={"config": {"x": value, "lr": value}}) for value in (1.0, 2.0)]
    assert len({question_digest(task, anything) for task in asked}) == 2
    named = [make_task(configs={"config": {"lr": value}}) for value in (1.0, 2.0)]
    assert len({question_digest(task, anything) for task in named}) == 1
