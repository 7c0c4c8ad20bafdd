"""Exchanges of a sum for each group of a cohort: the draw, and the groups' sums one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedcore.codec import Decoded
from fedcore.errors import ProtocolViolation, RoundFailed, RunFailed
from fedcore.flower.apps.result_cache import AppResults
from fedcore.run.engine.attempts import Attempt, run_attempts, run_now
from fedcore.run.engine.events import group_ended
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.exchange import ExchangeRequest
from fedcore.run.groups import GroupMembership, too_few_groups
from fedcore.simulation.models import model_ref
from fedcore.simulation.owners import client_name
from fedcore.simulation.secure import ExchangeWork, SecureAggregator
from fedcore.wire.tasks import ModelRef, Task


def sums_of_groups(aggregator: SecureAggregator, request: ExchangeRequest, results: AppResults) -> list[Decoded]:
    """A draw, and the sums of its groups, one after the other; raises RunFailed if too few have one."""
    settings, model, failed = aggregator.settings, model_ref(request.model), dict[int, str]()
    draw = aggregator.tasks.for_draw(request, model, aggregator.cohort(request.nodes, Attempt(number=1)), attempt=1)
    try:
        groups = aggregator.owners.draw(draw, aggregator.identities)
    except ProtocolViolation as refusal:
        raise aggregator.refused(draw, refusal) from refusal
    aggregator.close(draw, ExchangeOutcome())
    sums, started = list[_SimulatedGroup](), aggregator.clock()
    seconds = 0.0
    for group in groups:
        started = aggregator.clock()
        runner = _SimulatedGroup(aggregator=aggregator, request=request, model=model, group=group, results=results)
        try:
            runner.sum = run_now(run_attempts(runner, aggregator.attempts()))
        except RoundFailed as error:
            failed[group.group.number] = str(error)
        else:
            sums.append(runner)
            seconds += aggregator.clock() - started
    aggregator.state.take_groups()
    if len(sums) < settings.least_groups:
        raise RunFailed(too_few_groups(len(groups), settings.least_groups, failed), check="min-groups")
    aggregator.done(draw, [one.sum for one in sums if one.sum is not None], seconds)
    return [one.decoded for one in sums if one.decoded is not None]


@dataclass(slots=True, kw_only=True)
class _SimulatedGroup:
    """Carries out the attempts at the sum of one group, as `AttemptRunner`; sum: the one that succeeded."""

    aggregator: SecureAggregator
    request: ExchangeRequest
    model: ModelRef | None
    group: GroupMembership
    results: AppResults
    sum: tuple[Task, ExchangeOutcome] | None = field(default=None, init=False)
    decoded: Decoded | None = field(default=None, init=False)

    async def attempt(self, attempt: Attempt) -> tuple[Task, ExchangeOutcome]:
        request = replace(self.request, nodes=attempt.same or tuple(self.group.members))
        cohort = replace(self.aggregator.cohort(request.nodes, attempt), group=self.group)
        task = self.aggregator.tasks.for_sum(request, self.model, cohort, attempt=attempt.number)
        end, self.decoded = self.aggregator.sum(task, request, ExchangeWork(results=self.results))
        return task, end

    async def close(self, task: Task, end: ExchangeOutcome) -> None:
        self.aggregator.close(task, end)

    def failed(self, task: Task, end: ExchangeOutcome, error: RoundFailed, *, again: bool) -> str:
        reason = self.aggregator.owners.explain(error)
        self.aggregator.emit(group_ended(self.group.group, task, end, client_name, reason=reason, retry=again))
        return self.aggregator.final_reason(task, error)
