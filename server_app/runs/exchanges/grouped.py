"""Exchanges that are cut into groups: a draw, then the secure exchanges of all groups at the same time.

When such an exchange succeeds is decided in `fedcore.run.engine.grouping`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from math import ceil
from typing import Any

from fedcore.errors import RoundFailed
from fedcore.run.engine.attempts import Attempt, run_attempts
from fedcore.run.engine.events import Sums, sums_done
from fedcore.run.engine.grouping import GroupResult, NoSum, run_groups, sum_of_group
from fedcore.run.engine.outcome import ExchangeOutcome, ExchangeUsage
from fedcore.run.groups import GroupMembership, is_draw
from fedcore.run.retries import Attempts
from fedcore.wire.tasks import StoredTask, Task
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.group_assignment import DrawExchange
from server_app.runs.exchanges.secure import SecureExchanges, SecureRequest
from server_app.runs.run_context import RunContext
from server_app.storage.tables import ExchangeRow


class GroupedExchanges:
    """Carries them out.

    run
        What all parts that lead the run share.
    sums
        Leads the exchange of each group.
    """

    def __init__(self, run: RunContext, sums: SecureExchanges) -> None:
        self._run = run
        self._sums = sums

    async def exchange(self, request: SecureRequest) -> list[int]:
        """Numbers of the exchanges of the groups that gave a sum, in the order of the groups; raises RoundFailed."""
        run = self._run
        past = list(run.past_of(request.step))
        # The groups need the roster of their draw: a member that was removed in between would be missed in all of them.
        with run.services.roster.hold(past[0].task["roster"] if past and past[0].task else None):
            runner = _GroupsRunner(run, self._sums, request, past)
            done = await run_groups(runner, run.state, run.plan.settings.least_groups)
        spent = run.state.budget.epsilon_spent
        run.event_log.add(sums_done(done.draw, done.sums, run.name, usage=done.usage, epsilon_spent=spent))
        return [task.exchange for task, _ in done.sums]


class _GroupsRunner:
    """Carries out a draw and the sums of its groups, all at the same time, as `GroupsRunner`."""

    def __init__(
        self, run: RunContext, sums: SecureExchanges, request: SecureRequest, past: Sequence[ExchangeRow]
    ) -> None:
        self._run = run
        self._sums = sums
        self._request = request
        self._past = past

    async def draw(self) -> tuple[Task, ExchangeOutcome]:
        rows = iter([row for row in self._past if _is_draw(row)])
        runner = _DrawRunner(self._run, self._sums, self._request, rows)
        return await run_attempts(runner, Attempts.plain(self._run.plan.settings))

    async def sums(self, groups: Sequence[GroupMembership]) -> Sequence[GroupResult]:
        results = await _all([self._sum(group) for group in groups])
        done = [one for one in results if not isinstance(one, NoSum)]
        for task, end in sorted(done, key=lambda one: one[0].exchange):
            await self._run.close(task, end)
        return results

    async def _sum(self, group: GroupMembership) -> GroupResult:
        number = group.group.number
        rows = iter([row for row in self._past if _number(row) == number])
        runner = _GroupRunner(self._run, self._sums, self._request, group, rows)
        result = await sum_of_group(runner, self._sums.attempts(), number)
        if not isinstance(result, NoSum):
            self._run.note_group_end(*result)
        return result

    def too_few(self, draw: Task, usage: ExchangeUsage, sums: Sums, reason: str) -> None:
        self._run.note_failure(draw, reason, usage, *(end.usage for _, end in sums), retry=False)


class _DrawRunner:
    """Carries out the attempts at a draw, as `AttemptRunner`."""

    def __init__(
        self, run: RunContext, sums: SecureExchanges, request: SecureRequest, past: Iterator[ExchangeRow]
    ) -> None:
        self._run = run
        self._sums = sums
        self._request = request
        self._past = past

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        run, row = self._run, next(self._past, None)
        task = await self._announce(attempt) if row is None else StoredTask.model_validate(row.task)
        run.note_start(task, model=task.model_sha256)
        if row is not None and row.result is not None:
            return task, ExchangeOutcome.from_json(row.result)
        context = ExchangeContext(
            services=run.services,
            task=task,
            settings=run.plan.settings,
            model=None,
            add_event=run.event_log.add,
            step=self._request.step,
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
        run, request = self._run, self._request.exchange
        await run.pause(attempt)
        sizes = self._sums.sizes(self._request, ceil(len(request.nodes) / run.plan.settings.groups))
        clients = await run.clients.cohort(
            request.nodes, attempt.number, message_type=request.message_type, sizes=sizes
        )
        previous = await self._sums.head()
        with run.services.roster.hold() as roster:
            cohort = self._sums.cohort(roster, clients, previous)
            return run.tasks.for_draw(request, self._request.announced, cohort, attempt=attempt.number)


class _GroupRunner:
    """Carries out the attempts at the sum of one group, as `AttemptRunner`."""

    def __init__(
        self,
        run: RunContext,
        sums: SecureExchanges,
        request: SecureRequest,
        group: GroupMembership,
        past: Iterator[ExchangeRow],
    ) -> None:
        self._run = run
        self._sums = sums
        self._request = request
        self._group = group
        self._past = past
        self._before = ""
        """Why the attempt before gave nothing."""

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        if (row := next(self._past, None)) is not None:
            return await self._sums.go_on(self._request, row, self._group)
        await self._run.pause(attempt)
        try:
            members = await self._members(attempt)
        except RoundFailed as error:
            raise RoundFailed(f"{self._before}; {error}" if self._before else str(error)) from error
        return await self._sums.begin(self._request, attempt, members, group=self._group)

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
    return is_draw(StoredTask.model_validate(row.task))


def _number(row: ExchangeRow) -> int:
    """The number of the group that an exchange was for; 0 for a draw."""
    group = StoredTask.model_validate(row.task).group
    return group.number if group is not None else 0


async def _all(works: Sequence[Coroutine[Any, Any, GroupResult]]) -> list[GroupResult]:
    """What all of them give; if one raises, the others are cancelled before its error is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
