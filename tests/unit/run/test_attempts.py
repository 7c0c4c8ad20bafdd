"""The one loop of attempts, driven by an event loop as on a server and without one as in a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedcore.errors import (
    CohortTooSmall,
    DamagedAtRest,
    NothingContributed,
    RepliesDiffer,
    RoundFailed,
    RoundingTooCoarse,
    TooFewContributed,
    UpdateTooLarge,
    UsageError,
)
from fedcore.run.engine.attempts import Attempt, attempts_at_sum, run_attempts, run_now
from fedcore.run.engine.outcome import ExchangeFailure, ExchangeOutcome
from fedcore.run.retries import LONGEST_PAUSE, MOST_REPEATS, Attempts, final_reason
from fedcore.run.settings import JobSettings
from fedcore.secagg import Fault
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason
from tests.support.records import make_task

FAILED = ExchangeOutcome(failure=ExchangeFailure.of(RoundFailed("a line broke")))
DONE = ExchangeOutcome(survivors=(1, 2, 3))
ALL = [1, 2, 3, 4]
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
    assert [attempt.all_survive for attempt in play(drive, few, DONE).attempts] == [False, True]


def test_what_suspends_is_no_simulation() -> None:
    with pytest.raises(UsageError):
        run_now(asyncio.sleep(0))


class TestDecision:
    """`Attempts`: whether there is another, with whom, and after which pause."""

    TOO_LARGE = UpdateTooLarge(1, 4, None)

    def attempts(self, **settings: Any) -> Attempts:
        return Attempts(settings=JobSettings(**settings), has_room=lambda failures, n: failures < n)

    def test_repeats_are_few(self) -> None:
        attempts = self.attempts(max_attempts=1)
        for _ in range(MOST_REPEATS):
            assert attempts.go_on(self.TOO_LARGE, ALL, [1, 2, 4], free=False)
            assert (attempts.same, attempts.all_survive) == ((1, 2, 4), True)
        assert not attempts.go_on(self.TOO_LARGE, ALL, [1, 2, 4], free=False)
        assert "after 4 repeats with wider scales they still do" in final_reason(self.TOO_LARGE, JobSettings())

    def test_what_fails_at_once_waits_longer_each_time_and_nothing_else_waits(self) -> None:
        attempts = self.attempts(max_attempts=20)
        assert attempts.pause(2.0, 0.5) == 0.0, "the first one"
        attempts.go_on(self.TOO_LARGE, ALL, ALL, free=False, seconds=0.1)
        assert attempts.pause(2.0, 0.5) == 0.0, "a repeat"
        lost = CohortTooSmall("advertise", 0, 4)
        attempts.go_on(lost, ALL, (), free=True, seconds=0.1)
        assert attempts.pause(2.0, 0.5) == 0.0, "whoever was to blame is asked no more"
        pauses = []
        for _ in range(8):
            attempts.go_on(lost, ALL, (), free=False, seconds=0.5)
            pauses.append(attempts.pause(2.0, 0.5))
            assert attempts.pause(2.0, 0.0) < pauses[-1] < attempts.pause(2.0, 1.0), "they do not fall together"
        assert pauses == [1.5, 3.5, 7.5, 15.5, 31.5, LONGEST_PAUSE - 0.5, LONGEST_PAUSE - 0.5, LONGEST_PAUSE - 0.5]
        attempts.go_on(lost, ALL, (), free=False, seconds=400.0)
        assert attempts.pause(2.0, 1.0) == 0.0, "one that took long was time enough"

    def test_what_the_disk_damaged_is_made_again_a_few_times_by_the_same_clients(self) -> None:
        attempts = self.attempts(max_attempts=1)
        for survivors, same in (((), None), ((1, 3), (1, 3)), ((), None), ((), None)):
            assert attempts.go_on(DamagedAtRest("a sum"), ALL, survivors, free=False)
            assert attempts.same == same
        assert not attempts.go_on(DamagedAtRest("a sum"), ALL, (), free=False)

    def test_a_repeat_and_failures_of_other_kinds(self) -> None:
        attempts = self.attempts(max_attempts=3)
        assert attempts.go_on(self.TOO_LARGE, ALL, ALL, free=False)
        assert attempts.go_on(CohortTooSmall("input", 3, 4), ALL, (), free=False)
        assert (attempts.same, attempts.all_survive) == (None, False)
        assert attempts.go_on(TooFewContributed(2, 4, tolerated=1), ALL, ALL, free=False)
        assert (attempts.same, attempts.all_survive) == (None, True)
        assert attempts.go_on(self.TOO_LARGE, ALL, ALL, free=False)
        assert not attempts.go_on(TooFewContributed(2, 4, tolerated=1), ALL, ALL, free=False)

    @pytest.mark.parametrize("helps", [True, False])
    def test_a_sum_that_was_too_coarse_is_repeated_if_wider_fields_help(self, helps: bool) -> None:
        attempts = self.attempts(max_attempts=1, clipping="fail")
        error = RoundingTooCoarse("bias", 0.9, helps=helps, statistics=None)
        assert attempts.go_on(error, ALL, [1, 2, 4], free=False) is helps
        assert (attempts.same, attempts.all_survive) == ((1, 2, 4), True)

    def test_whoever_is_to_blame_costs_no_attempt(self) -> None:
        attempts = self.attempts(max_attempts=1)
        assert attempts.go_on(RoundFailed("somebody cheated"), ALL, (), free=True)
        assert not attempts.go_on(RoundFailed("too few"), ALL, (), free=False)

    @pytest.mark.parametrize("error", [NothingContributed(4, 4), RepliesDiffer()])
    def test_what_would_end_alike(self, error: RoundFailed) -> None:
        assert not self.attempts().go_on(error, ALL, ALL, free=False)
        assert "; retrying unchanged will fail again" in final_reason(error, JobSettings())
