"""Exchanges that are cut into groups: a draw, then the secure exchanges of all groups at the same time.

A group that fails, after its attempts, gives no mean; the others' go on where enough are left. Nothing is drawn anew
once groups have been asked: clients would refuse other groups for the same model
(`fedcore.federation.admission.releases`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.errors import RoundFailed
from fedcore.run.engine.events import sums_done
from fedcore.run.engine.outcome import ExchangeOutcome, ExchangeUsage
from fedcore.run.exchange import make_draw
from fedcore.run.groups import GroupMembership, groups_of, is_draw, too_few_groups
from fedcore.run.requirements import group_spec_for
from fedcore.run.retries import Attempts
from fedcore.wire.control import KeptTask, Task
from fedcore.wire.events import ExchangeFailed
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.group_assignment import DrawExchange
from server_app.runs.exchanges.secure import SecureExchanges, SecureRequest, announce
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
        with run.services.roster.held(past[0].task["roster"] if past and past[0].task else None):
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
        run, settings = self._run, self._run.plan.settings
        attempts = Attempts.plain(settings)
        for attempt in itertools.count(1):
            row = next(past, None)
            if row is None:
                await run.pause(attempts)
            task, end = await self._draw_once(asked, attempt, row)
            await run.close(task, end)
            if end.failure is None:
                return task, end
            error = end.failure.error()
            again = attempts.go_on(error, task.cohort, (), free=False, seconds=end.usage.seconds) and end.common is None
            self._note_failure(task, end.failure.reason, end.usage, retry=again)
            if not again:
                raise RoundFailed(run.explain(task, end, error)) from error
        raise AssertionError("there is always another number")

    async def _draw_once(
        self, asked: SecureRequest, attempt: int, row: ExchangeRow | None
    ) -> tuple[Task, ExchangeOutcome]:
        run = self._run
        if row is None:
            kind = asked.request.message_type
            cohort = await run.clients.cohort(asked.request.nodes, attempt, message_type=kind)
            task = self._task(asked, cohort, attempt, await self._sums.head())
        else:
            task = KeptTask.model_validate(row.task)
        run.note_start(task, model=task.model_sha256)
        if row is not None and row.result is not None:
            return task, ExchangeOutcome.from_json(row.result)
        context = ExchangeContext(
            services=run.services,
            task=task,
            settings=run.plan.settings,
            model=None,
            event_log=run.event_log,
            step=asked.step,
        )
        with run.services.roster.held() as roster:
            exchange = DrawExchange(context, federation=roster.federation, roster=roster.keys)
            return task, await run.lead(exchange, row)

    def _task(self, asked: SecureRequest, cohort: Sequence[int], attempt: int, previous: str) -> Task:
        """Announce a draw."""
        run, settings = self._run, self._run.plan.settings
        with run.services.roster.held() as roster:
            members = len(roster.members)
            task = announce(run, asked, roster, cohort=cohort, attempt=attempt, previous=previous, encoding=None)
        cut, needed = group_spec_for(settings, len(cohort), members, run.services.min_cohort)
        return make_draw(task, cut, needed=needed)

    # --- the groups -----------------------------------------------------------------------------

    async def _group(self, asked: SecureRequest, part: GroupMembership, past: Iterator[ExchangeRow]) -> _Sum | _NoSum:
        """Attempts at the sum of one group, until one succeeds or no other can help."""
        run, attempts, reason = self._run, self._sums.attempts(), ""
        for attempt in itertools.count(1):
            try:
                task, end = await self._sums.attempt(asked, attempts, attempt, next(past, None), part)
            except RoundFailed as error:
                return _NoSum(part.group.number, f"{reason}; {error}" if reason else str(error))
            if end.failure is None:
                run.note_group_end(task, end)
                return _Sum(task, end)
            await run.close(task, end)
            failure = end.failure.error()
            reason = run.explain(task, end, failure)
            again = run.goes_on(attempts, task, end, failure)
            run.note_group_end(task, end, reason=str(failure), retry=again)
            if not again:
                return _NoSum(part.group.number, reason)
        raise AssertionError("there is always another number")

    def _check(
        self, draw: Task, end: ExchangeOutcome, groups: int, sums: Sequence[_Sum], failed: Sequence[_NoSum]
    ) -> None:
        """Raise RoundFailed where too few groups gave a sum. end: of the draw."""
        least = self._run.plan.settings.least_groups
        if groups - len(failed) >= least:
            return
        reason = too_few_groups(groups, least, {one.number: one.reason for one in failed})
        self._note_failure(draw, reason, end.usage, *(one.end.usage for one in sums), retry=False)
        raise RoundFailed(reason)

    # --- what is told ---------------------------------------------------------------------------

    def _note_failure(self, draw: Task, reason: str, *usages: ExchangeUsage, retry: bool) -> None:
        failed = ExchangeFailed(
            exchange=draw.exchange,
            server_round=draw.server_round,
            reason=reason,
            retry=retry,
            **self._run.traffic(*usages),
        )
        self._run.event_log.add(failed)

    def _note_done(self, draw: Task, end: ExchangeOutcome, sums: Sequence[_Sum]) -> None:
        """Say what came of all groups together: the mean over their clients, as of one cohort."""
        run, spent = self._run, self._run.state.budget.epsilon_spent
        pairs = [(one.task, one.end) for one in sums]
        run.event_log.add(sums_done(draw, pairs, run.name, usage=end.usage, epsilon_spent=spent))


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
