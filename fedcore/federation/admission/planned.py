"""Queries of an app that has a study plan: only its questions are answered, each as often as the plan says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedcore.errors import ProtocolViolation
from fedcore.federation.admission import checks
from fedcore.federation.admission.owner import AgreedSum, ClientHistory
from fedcore.wire.tasks import Task

if TYPE_CHECKING:
    from fedcore.flower.plan import PlannedQuestion, StudyPlan


def check_planned(task: Task, plan: StudyPlan | None, history: ClientHistory) -> str:
    """The name of the question that a query belongs to; "" if it is none, or there is no plan.

    Raises ProtocolViolation for a query that is not in the plan, or was asked as often as the plan says.
    """
    if plan is None or not task.queries:
        return ""
    config: dict[str, Any] = {key: value for values in task.configs.values() for key, value in values.items()}
    questions = list(plan.find(task.message_type, config))
    if not questions:
        raise ProtocolViolation(
            checks.NOT_PLANNED, "the query belongs to no question of the study plan that the installed app has"
        )
    released = history.released(task.purpose, task.subject_model)
    for question in questions:
        if _has_room(question, task.run, released):
            return question.name
    raise ProtocolViolation(
        checks.NOT_PLANNED,
        f"the question {questions[0].name!r} was asked as often as the study plan of the installed app says: in "
        f"{questions[0].runs} runs, with {questions[0].queries} queries in each at most",
    )


def _has_room(question: PlannedQuestion, run: str, released: Sequence[AgreedSum]) -> bool:
    sums = [one.run for one in released if one.question == question.name]
    return len({*sums, run}) <= question.runs and sums.count(run) < question.queries
