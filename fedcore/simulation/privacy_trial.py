"""Simulated runs that show what the noise of differential privacy costs: their models are evaluated without noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedcore.codec import Decoded, decode, release_of
from fedcore.flower.apps.batched_clients import OnFailure, raise_failure
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.engine.attempts import Attempt
from fedcore.run.engine.outcome import AggregateResult, ExchangeOutcome
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.settings import JobSettings
from fedcore.simulation.models import model_ref
from fedcore.simulation.run import Simulation
from fedcore.simulation.sessions.sessions import encoded
from fedcore.simulation.workers.executor import ExecutorWrapper
from fedcore.state import ModelState
from fedcore.wire.tasks import Task, is_query, is_training


def without_privacy(settings: JobSettings) -> JobSettings:
    """The same settings without noise and without a bound on updates."""
    return replace(settings, dp_epsilon=0.0, dp_noise_multiplier=0.0, dp_rounds=0, dp_metric_bound=0.0, clip_norm=0.0)


@dataclass(slots=True, kw_only=True)
class PrivacyTrial(Simulation):
    """A simulation whose evaluations have no noise, which a federation would not answer.

    They cost what they would cost with dp-metric-bound, and without it nothing.
    """

    _exact: EncodingPlan | None = field(default=None, init=False)

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """One exchange; an evaluation of a private run is a sum of exact numbers."""
        kind = request.message_type
        if not self.settings.private or is_training(kind) or is_query(kind):
            return super(PrivacyTrial, self).exchange(request)
        return [ExchangeReply.of_cohort(self._evaluate(self._enlarged(request)))]

    def _evaluate(self, request: ExchangeRequest) -> Decoded:
        kind, nodes, began = request.message_type, request.nodes, self.clock()
        if self._exact is None:
            self._exact = EncodingPlan(without_privacy(self.settings), self._least)
        if self.settings.dp_metric_bound:
            self._state.budget.spend(release_of(self._state.encodings.encoding(kind, None, len(nodes), self.clients)))
        encoding = self._exact.encoding(kind, None, len(nodes), self.clients)
        cohort = self._aggregator.cohort(nodes, Attempt(number=1))
        task = self._aggregator.tasks.make(request, model_ref(request.model), cohort, attempt=1, encoding=encoding)
        total = np.zeros(encoding.words, np.uint64)
        with self._folders.of_clients():
            for _, result in self._executor.run(task, request.model, nodes):
                total += encoded(encoding, None, None, result.examples, result.metrics)
        decoded = decode(encoding, total, survivors=len(nodes), base=None, sums=task.queries)
        self._exact.learn(kind, encoding, decoded)
        end = ExchangeOutcome(survivors=tuple(nodes), unmasked=True, total=AggregateResult.of(decoded, None, ""))
        self._aggregator.done(task, [(task, end)], self.clock() - began)
        return decoded


@dataclass(slots=True)
class UpdateMeter(ExecutorWrapper):
    """Measures the L2 norm of each update, over all floating point tensors together, as clip-norm bounds it."""

    norms: list[float] = field(default_factory=list)

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        for client, result in self.executor.run(task, model, clients, on_failure):
            if model is not None and task.trains and (local := result.state()) is not None:
                self.norms.append(update_norm(model, local))
            yield client, result


def update_norm(base: ModelState, local: ModelState) -> float:
    """The L2 norm of local - base over the floating point tensors."""
    squares = (
        float(np.square(local.float32(spec.name).astype(np.float64) - base.float32(spec.name)).sum())
        for spec in base.layout.floats
    )
    return math.sqrt(math.fsum(squares))
