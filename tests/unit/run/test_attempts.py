"""The one loop of attempts, driven by an event loop as on a server and without one as in a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedcore.errors import RoundFailed, TooFewContributed, UsageError
from fedcore.run.engine.attempts import Attempt, attempts_at_sum, run_attempts, run_now
from fedcore.run.engine.outcome import ExchangeFailure, ExchangeOutcome
from fedcore.run.settings import JobSettings
from fedcore.secagg import Fault
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason
from tests.support.records import make_task

FAILED = ExchangeOutcome(failure=ExchangeFailure.of(RoundFailed("a line broke")))
DONE = ExchangeOutcome(survivors=(1, 2, 3))
Drive = Callable[[Any], Any]


@dataclass
class Script:
    """Plays outcomes one after the other; an `AttemptRunner`."""

    outcomes: list[ExchangeOutcome]
    attempts: list[Attempt] = field(default_factory=list)
    closed: int = 0
    reports: list[bool] = field(default_factory=list)

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        self.attempts.append(attempt)
        return make_task(attempt.number, attempt=attempt.number), self.outcomes.pop(0)

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        self.closed += 1

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        self.reports.append(again)
        return f"attempt {task.attempt}: {error}"


@pytest.fixture(params=[asyncio.run, run_now], ids=["server", "simulation"])
def drive(request: pytest.FixtureRequest) -> Drive:
    chosen: Drive = request.param
    return chosen


def play(drive: Drive, *outcomes: ExchangeOutcome, **settings: Any) -> Script:
    script = Script(list(outcomes))
    attempts = attempts_at_sum(JobSettings(**settings), lambda: (10, 2))
    try:
        drive(run_attempts(script, attempts))
    finally:
        assert script.closed == len(script.attempts)
        assert not script.outcomes
    return script


def test_a_failed_attempt_is_followed_by_another(drive: Drive) -> None:
    script = play(drive, FAILED, DONE)
    assert [attempt.number for attempt in script.attempts] == [1, 2]
    assert script.reports == [True]


def test_the_last_attempt_says_why(drive: Drive) -> None:
    with pytest.raises(RoundFailed) as failed:
        play(drive, FAILED, FAILED, max_attempts=2)
    assert isinstance(failed.value.__cause__, RoundFailed)
    assert str(failed.value).startswith("attempt 2")


def test_where_all_clients_leave_for_one_reason_there_is_no_other_attempt(drive: Drive) -> None:
    left = ExchangeOutcome(failure=FAILED.failure, common=WithdrawalReason.POLICY)
    with pytest.raises(RoundFailed):
        play(drive, left, max_attempts=5)


def test_an_attempt_that_somebody_is_blamed_for_does_not_count(drive: Drive) -> None:
    blamed = ExchangeOutcome(failure=FAILED.failure, blamed={4: next(iter(Fault))})
    assert len(play(drive, blamed, blamed, DONE, max_attempts=1).attempts) == 3


def test_where_too_few_contributed_the_whole_cohort_has_to_survive(drive: Drive) -> None:
    few = ExchangeOutcome(failure=ExchangeFailure.of(TooFewContributed(0, 4, tolerated=0)))
    assert [attempt.whole for attempt in play(drive, few, DONE).attempts] == [False, True]


def test_what_suspends_is_no_simulation() -> None:
    with pytest.raises(UsageError):
        run_now(asyncio.sleep(0))
