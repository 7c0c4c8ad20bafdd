"""Attempts at one sum, until there is one or no other attempt can help.

One loop leads them all: at a cohort's sum, a group's, a buffer's, at a draw and at plain replies, on a server and in a
simulation. What carries an attempt out is a port, an `AttemptRunner`. Its methods are coroutines, since a server waits
for its clients; those of a simulation never suspend, so `run_now` drives them without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fedcore.errors import RoundFailed, UsageError
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.quorum import failures_for
from fedcore.run.retries import Attempts
from fedcore.run.settings import JobSettings
from fedcore.wire.tasks import Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which attempt at a sum is to be made.

    number
        From 1 on.
    same
        The clients to ask again, with nobody in their place; None for any.
    all_survive
        Whether all clients of the cohort have to survive.
    pause
        Seconds to wait before it, as a function of the first pause and of jitter (`Attempts.pause`).
    """

    number: int
    same: tuple[int, ...] | None = None
    all_survive: bool = False
    pause: Callable[[float, float], float] = lambda first, jitter: 0.0


class AttemptRunner(Protocol):
    """Carries out the attempts at one sum."""

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        """Make an attempt, or return what one of an earlier process came to; raises RoundFailed if none can be."""
        ...

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        """Take an attempt that ended into the run's state."""
        ...

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        """Report an attempt that gave nothing; returns why, for the run's operator. again: whether another follows."""
        ...


async def run_attempts(runner: AttemptRunner, attempts: Attempts) -> tuple[Task, ExchangeOutcome]:
    """The first attempt that succeeds; raises RoundFailed if `attempts` says that there is no other.

    An attempt that somebody is blamed for does not count: clients that cheat are excluded, so they can end the run
    neither with one attempt nor, together, with all of them.
    """
    number = 0
    while True:
        number += 1
        attempt = Attempt(number=number, same=attempts.same, all_survive=attempts.all_survive, pause=attempts.pause)
        task, end = await runner.attempt(attempt)
        await runner.close(task, end)
        if end.failure is None:
            return task, end
        error = end.failure.error()
        free, seconds = bool(end.blamed) and task.encoding is not None, end.usage.seconds
        again = attempts.go_on(error, task.cohort, end.survivors, free=free, seconds=seconds) and end.common is None
        reason = runner.failed(task, end, error, again=again)
        if not again:
            raise RoundFailed(reason) from error


def attempts_at_sum(settings: JobSettings, sizes: Callable[[], tuple[int, int]]) -> Attempts:
    """The attempts at a secure sum, of which there was none yet.

    sizes
        How many members the federation has, and the least cohort of their policies.
    """

    def has_room(failures: int, n: int) -> bool:
        members, least = sizes()
        return failures <= failures_for(settings, n, least, members, all_survive=True)

    return Attempts(settings=settings, has_room=has_room)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, as all of a simulation."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise UsageError("a simulation has nothing to wait for")
