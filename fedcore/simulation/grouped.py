"""Exchanges of a sum for each group of a cohort: the draw, and the groups' sums one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedcore.codec import Decoded
from fedcore.errors import ProtocolViolation, RoundFailed, RunFailed
from fedcore.flower.apps.result_cache import AppResults
from fedcore.run.engine.attempts import Attempt, run_now
from fedcore.run.engine.events import Sums, exchange_failed, group_ended
from fedcore.run.engine.grouping import GroupResult, NoSum, run_groups, sum_of_group
from fedcore.run.engine.outcome import ExchangeOutcome, ExchangeUsage
from fedcore.run.exchange import ExchangeRequest
from fedcore.run.groups import GroupMembership
from fedcore.simulation.models import model_ref
from fedcore.simulation.owners import client_name
from fedcore.simulation.secure import ExchangeWork, SecureAggregator
from fedcore.wire.tasks import ModelRef, Task


def sums_of_groups(aggregator: SecureAggregator, request: ExchangeRequest, results: AppResults) -> list[Decoded]:
    """A draw, and the sums of its groups, one after the other; raises RunFailed if too few have one."""
    runner = _SimulatedGroups(aggregator=aggregator, request=request, results=results)
    try:
        done = run_now(run_groups(runner, aggregator.state, aggregator.settings.least_groups))
    except RoundFailed as error:
        raise RunFailed(str(error), check=error.check) from error
    aggregator.done(done.draw, done.sums, runner.seconds)
    return runner.decoded


@dataclass(slots=True, kw_only=True)
class _SimulatedGroups:
    """Carries out a draw and the sums of its groups, as `GroupsRunner`.

    decoded, seconds
        Of the groups that gave a sum: these, and how long they took together.
    """

    aggregator: SecureAggregator
    request: ExchangeRequest
    results: AppResults
    decoded: list[Decoded] = field(default_factory=list, init=False)
    seconds: float = field(default=0.0, init=False)

    async def draw(self) -> tuple[Task, ExchangeOutcome]:
        aggregator, request = self.aggregator, self.request
        cohort = aggregator.cohort(request.nodes, Attempt(number=1))
        task = aggregator.tasks.for_draw(request, model_ref(request.model), cohort, attempt=1)
        try:
            tickets = aggregator.owners.draw(task, aggregator.identities)
        except ProtocolViolation as refusal:
            raise aggregator.refused(task, refusal) from refusal
        aggregator.close(task, ExchangeOutcome())
        return task, ExchangeOutcome(places=tickets)

    async def sums(self, groups: Sequence[GroupMembership]) -> Sequence[GroupResult]:
        return [await self._sum(group) for group in groups]

    async def _sum(self, group: GroupMembership) -> GroupResult:
        started, model = self.aggregator.clock(), model_ref(self.request.model)
        runner = _SimulatedGroup(
            aggregator=self.aggregator, request=self.request, model=model, group=group, results=self.results
        )
        result = await sum_of_group(runner, self.aggregator.attempts(), group.group.number)
        if not isinstance(result, NoSum) and runner.decoded is not None:
            self.decoded.append(runner.decoded)
            self.seconds += self.aggregator.clock() - started
        return result

    def too_few(self, draw: Task, usage: ExchangeUsage, sums: Sums, reason: str) -> None:
        usages = [usage, *(end.usage for _, end in sums)]
        self.aggregator.emit(exchange_failed(draw, reason, usages, client_name, retry=False))


@dataclass(slots=True, kw_only=True)
class _SimulatedGroup:
    """Carries out the attempts at the sum of one group, as `AttemptRunner`."""

    aggregator: SecureAggregator
    request: ExchangeRequest
    model: ModelRef | None
    group: GroupMembership
    results: AppResults
    decoded: Decoded | None = field(default=None, init=False)
    work: ExchangeWork = field(init=False)

    def __post_init__(self) -> None:
        self.work = self.aggregator.work(self.results, self.request)

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        request = replace(self.request, nodes=attempt.same or tuple(self.group.members))
        cohort = replace(self.aggregator.cohort(request.nodes, attempt), group=self.group)
        task = self.aggregator.tasks.for_sum(request, self.model, cohort, attempt=attempt.number)
        end, self.decoded = self.aggregator.sum(task, request, self.work)
        return task, end

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        self.aggregator.close(task, end)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        reason = self.aggregator.owners.explain(error)
        self.aggregator.emit(group_ended(self.group.group, task, end, client_name, reason=reason, retry=again))
        return self.aggregator.final_reason(task, error)
