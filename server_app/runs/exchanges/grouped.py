"""Exchanges that are cut into groups: a draw, then the secure exchanges of all groups at the same time.

A group that fails, after its attempts, gives no mean; the others' go on where enough are left. Nothing is drawn again
once groups have been asked: clients would refuse other groups for the same model
(`fedcore.federation.admission.releases`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.errors import RoundFailed
from fedcore.run.engine.attempts import Attempt, run_attempts
from fedcore.run.engine.events import sums_done
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.groups import GroupMembership, groups_of, is_draw, too_few_groups
from fedcore.run.retries import Attempts
from fedcore.wire.tasks import KeptTask, Task
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.group_assignment import DrawExchange
from server_app.runs.exchanges.secure import SecureExchanges, SecureRequest
from server_app.runs.run_context import RunContext
from server_app.storage.tables import ExchangeRow


@dataclass(frozen=True, slots=True)
class _Sum:
    """A group that has given its sum."""

    task: Task
    end: ExchangeOutcome


@dataclass(frozen=True, slots=True)
class _NoSum:
    """A group that has not, and why."""

    number: int
    reason: str


class GroupedExchanges:
    """Carries them out. sums: who leads the exchange of each group."""

    def __init__(self, run: RunContext, sums: SecureExchanges) -> None:
        self._run = run
        self._sums = sums

    async def exchange(self, asked: SecureRequest) -> list[int]:
        """Numbers of the exchanges of the groups that gave a sum, in the order of the groups; raises RoundFailed."""
        run = self._run
        past = list(run.past_of(asked.step))
        # The groups need the roster of their draw: whoever was removed in between would be missed in all of them.
        with run.services.roster.hold(past[0].task["roster"] if past and past[0].task else None):
            draw, end = await self._draw(asked, iter([row for row in past if _is_draw(row)]))
            parts = groups_of(draw, end.places)
            rows = {part.group.number: [row for row in past if _number(row) == part.group.number] for part in parts}
            found = await _all([self._group(asked, part, iter(rows[part.group.number])) for part in parts])
        sums = [one for one in found if isinstance(one, _Sum)]
        for one in sorted(sums, key=lambda one: one.task.exchange):
            await run.close(one.task, one.end)
        run.state.take_groups()
        self._check(draw, end, len(parts), sums, [one for one in found if isinstance(one, _NoSum)])
        self._note_done(draw, end, sums)
        return [one.task.exchange for one in sums]

    # --- the draw -------------------------------------------------------------------------------

    async def _draw(self, asked: SecureRequest, past: Iterator[ExchangeRow]) -> tuple[Task, ExchangeOutcome]:
        """Attempts at the draw, until one has enough answers for groups; raises RoundFailed."""
        runner = _DrawRunner(self._run, self._sums, asked, past)
        return await run_attempts(runner, Attempts.plain(self._run.plan.settings))

    # --- the groups -----------------------------------------------------------------------------

    async def _group(self, asked: SecureRequest, group: GroupMembership, past: Iterator[ExchangeRow]) -> _Sum | _NoSum:
        """Attempts at the sum of one group, until one succeeds or no other can help."""
        runner = _GroupRunner(self._run, self._sums, asked, group, past)
        try:
            task, end = await run_attempts(runner, self._sums.attempts())
        except RoundFailed as error:
            return _NoSum(group.group.number, str(error))
        self._run.note_group_end(task, end)
        return _Sum(task, end)

    def _check(
        self, draw: Task, end: ExchangeOutcome, groups: int, sums: Sequence[_Sum], failed: Sequence[_NoSum]
    ) -> None:
        """Raise RoundFailed if too few groups gave a sum. end: of the draw."""
        least = self._run.plan.settings.least_groups
        if groups - len(failed) >= least:
            return
        reason = too_few_groups(groups, least, {one.number: one.reason for one in failed})
        self._run.note_failure(draw, reason, end.usage, *(one.end.usage for one in sums), retry=False)
        raise RoundFailed(reason)

    # --- what is told ---------------------------------------------------------------------------

    def _note_done(self, draw: Task, end: ExchangeOutcome, sums: Sequence[_Sum]) -> None:
        """Say what came of all groups together: the mean over their clients, as of one cohort."""
        run, spent = self._run, self._run.state.budget.epsilon_spent
        pairs = [(one.task, one.end) for one in sums]
        run.event_log.add(sums_done(draw, pairs, run.name, usage=end.usage, epsilon_spent=spent))


class _DrawRunner:
    """Carries out the attempts at a draw, as `AttemptRunner`."""

    def __init__(
        self, run: RunContext, sums: SecureExchanges, asked: SecureRequest, past: Iterator[ExchangeRow]
    ) -> None:
        self._run = run
        self._sums = sums
        self._asked = asked
        self._past = past

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        run, row = self._run, next(self._past, None)
        task = await self._announce(attempt) if row is None else KeptTask.model_validate(row.task)
        run.note_start(task, model=task.model_sha256)
        if row is not None and row.result is not None:
            return task, ExchangeOutcome.from_json(row.result)
        context = ExchangeContext(
            services=run.services,
            task=task,
            settings=run.plan.settings,
            model=None,
            add_event=run.event_log.add,
            step=self._asked.step,
        )
        with run.services.roster.hold() as roster:
            exchange = DrawExchange(context, federation=roster.federation, roster=roster.keys)
            return task, await run.lead(exchange, row)

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        await self._run.close(task, end)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        self._run.note_failure(task, str(error), end.usage, retry=again)
        return self._run.explain(task, end, error)

    async def _announce(self, attempt: Attempt) -> Task:
        run, request = self._run, self._asked.request
        await run.pause(attempt)
        clients = await run.clients.cohort(request.nodes, attempt.number, message_type=request.message_type)
        previous = await self._sums.head()
        with run.services.roster.hold() as roster:
            cohort = self._sums.cohort(roster, clients, previous)
            return run.tasks.for_draw(request, self._asked.announced, cohort, attempt=attempt.number)


class _GroupRunner:
    """Carries out the attempts at the sum of one group, as `AttemptRunner`."""

    def __init__(
        self,
        run: RunContext,
        sums: SecureExchanges,
        asked: SecureRequest,
        group: GroupMembership,
        past: Iterator[ExchangeRow],
    ) -> None:
        self._run = run
        self._sums = sums
        self._asked = asked
        self._group = group
        self._past = past
        self._before = ""
        """Why the attempt before gave nothing."""

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        if (row := next(self._past, None)) is not None:
            return await self._sums.go_on(self._asked, row, self._group)
        await self._run.pause(attempt)
        try:
            members = await self._members(attempt)
        except RoundFailed as error:
            raise RoundFailed(f"{self._before}; {error}" if self._before else str(error)) from error
        return await self._sums.begin(self._asked, attempt, members, group=self._group)

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        if end.failure is not None:  # those that gave a sum are closed together, once all groups have ended
            await self._run.close(task, end)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        self._before = self._run.explain(task, end, error)
        self._run.note_group_end(task, end, reason=str(error), retry=again)
        return self._before

    async def _members(self, attempt: Attempt) -> Sequence[int]:
        """Whom to ask; raises RoundFailed if too few are there, or left."""
        clients, least = self._run.clients, self._group.cut.least
        left = attempt.same or clients.without_cheats(self._group.members)
        if len(left) < least:
            raise RoundFailed(f"{len(left)} members of the group may be asked again, it needs {least}")
        if not await clients.come_back(left, least):
            seconds = self._run.plan.settings.join_seconds
            raise RoundFailed(f"fewer than {least} members of the group are connected after {seconds:g} s")
        return left


def _is_draw(row: ExchangeRow) -> bool:
    return is_draw(KeptTask.model_validate(row.task))


def _number(row: ExchangeRow) -> int:
    """The number of the group that an exchange was for; 0 for a draw."""
    group = KeptTask.model_validate(row.task).group
    return group.number if group is not None else 0


async def _all(works: Sequence[Coroutine[Any, Any, _Sum | _NoSum]]) -> list[_Sum | _NoSum]:
    """What all of them give; where one raises, the others are put down before that is told."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
