"""What a simulation says of the models that it leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.codec.privacy import PrivacyBudget
from fedcore.flower.app import AppBundle
from fedcore.monitoring.run_record import RunRecord
from fedcore.run.model_selection import BestRule
from fedcore.state import ModelFacts, ModelState
from fedcore.wire.control import ModelRef
from fedcore.wire.events import EventSink, Warned

if TYPE_CHECKING:
    from fedcore.simulation.run import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class BestModel:
    """The model of a round that was evaluated best. value: of its metric; said: in words. epsilon: spent by then."""

    state: ModelState
    value: float
    said: str
    rounds: int
    epsilon: float | None


@dataclass(slots=True, kw_only=True)
class BestSoFar:
    """Keeps the model that was evaluated best. rule: None keeps none. evaluated: the last one, and in which round.

    unjudged: what to say where that evaluation had no such metric, and neither has what the strategy makes of it.
    """

    rule: BestRule | None
    account: PrivacyBudget
    emit: EventSink
    best: BestModel | None = field(default=None, init=False)
    evaluated: tuple[int, ModelState] | None = field(default=None, init=False)
    unjudged: str = field(default="", init=False)
    warned: bool = field(default=False, init=False)

    def judge(self, metrics: Mapping[str, Any]) -> None:
        """Keep the model that was evaluated last if no other was better."""
        if self.rule is None or self.evaluated is None:
            return
        number, model = self.evaluated
        value = self.rule.value(metrics)
        self.unjudged = self.rule.absent(metrics) if value is None else ""
        if value is not None and self.rule.beats(value, self.best.value if self.best is not None else None):
            spent = self.account.epsilon_spent
            self.best = BestModel(
                state=model, value=value, said=self.rule.describe(value), rounds=number, epsilon=spent
            )

    def warn_unjudged(self) -> None:
        """Say once that the evaluation did not have the metric, nor what the strategy made of it."""
        if self.unjudged and not self.warned:
            self.warned = True
            self.emit(Warned(line=self.unjudged))


def model_ref(model: ModelState | None) -> ModelRef | None:
    """Names a model in memory by a hash over its layout and its bytes."""
    if model is None:
        return None
    digest = hashlib.sha256(model.layout.digest())
    for array in model.values():
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return ModelRef(sha256=digest.hexdigest(), size=model.layout.nbytes)


def model_facts(simulation: Simulation, record: RunRecord) -> ModelFacts:
    """What the file of a simulation's model says of it."""
    return ModelFacts(
        app=simulation.app.name,
        app_sha256=AppBundle.from_folder(simulation.app.folder).sha256,
        rounds=record.rounds(),
        epsilon=record.epsilon_spent(),
        delta=record.privacy.delta if record.privacy is not None else None,
        run_config=simulation.run_config,
        told=simulation.told,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def best_facts(simulation: Simulation, record: RunRecord, best: BestModel) -> ModelFacts:
    """What the file of a simulation's best model says of it."""
    facts = model_facts(simulation, record)
    return replace(facts, kind="best", rounds=best.rounds, epsilon=best.epsilon, best=best.said)
