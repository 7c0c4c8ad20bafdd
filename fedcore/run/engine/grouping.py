"""An exchange that is cut into groups: a draw, then the sums of its groups, of which enough have to succeed.

A group that fails, after its attempts, gives no mean; those of the others count if enough are left. Nothing is drawn
again once groups have been asked: clients would refuse other groups for the same model
(`fedcore.federation.admission.releases`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fedcore.errors import RoundFailed
from fedcore.run.engine.attempts import AttemptRunner, run_attempts
from fedcore.run.engine.events import Sums
from fedcore.run.engine.outcome import ExchangeOutcome, ExchangeUsage
from fedcore.run.engine.state import RunState
from fedcore.run.groups import GroupMembership, groups_of, too_few_groups
from fedcore.run.retries import Attempts
from fedcore.wire.tasks import Task


@dataclass(frozen=True, slots=True)
class NoSum:
    """A group that has not given its sum, by its number, and why."""

    number: int
    reason: str


GroupResult: TypeAlias = tuple[Task, ExchangeOutcome] | NoSum


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedSums:
    """What an exchange of groups gave.

    draw, usage
        The task of the draw, and what it cost.
    sums
        Of the groups that gave one, in the order of the groups.
    """

    draw: Task
    usage: ExchangeUsage
    sums: Sums


class GroupsRunner(Protocol):
    """Carries out a draw, and the sums of its groups."""

    async def draw(self) -> tuple[Task, ExchangeOutcome]:
        """Make a draw that has enough answers; raises RoundFailed."""
        ...

    async def sums(self, groups: Sequence[GroupMembership]) -> Sequence[GroupResult]:
        """Make the sums of all groups, in their order, and take them into the run's state."""
        ...

    def too_few(self, draw: Task, usage: ExchangeUsage, sums: Sums, reason: str) -> None:
        """Report that too few groups gave a sum."""
        ...


async def run_groups(runner: GroupsRunner, state: RunState, least: int) -> GroupedSums:
    """A draw, and the sums of its groups; raises RoundFailed if fewer than `least` groups give one."""
    draw, end = await runner.draw()
    groups = groups_of(draw, end.places)
    results = await runner.sums(groups)
    state.take_groups()
    sums = [one for one in results if not isinstance(one, NoSum)]
    if len(sums) < least:
        reasons = {one.number: one.reason for one in results if isinstance(one, NoSum)}
        reason = too_few_groups(len(groups), least, reasons)
        runner.too_few(draw, end.usage, sums, reason)
        raise RoundFailed(reason, check="min-groups")
    return GroupedSums(draw=draw, usage=end.usage, sums=sums)


async def sum_of_group(runner: AttemptRunner, attempts: Attempts, number: int) -> GroupResult:
    """Attempts at the sum of one group, until one succeeds or no other can help."""
    try:
        return await run_attempts(runner, attempts)
    except RoundFailed as error:
        return NoSum(number, str(error))
