"""What a simulation says of the models that it leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.flower.app import AppBundle
from fedcore.monitoring.run_record import RunRecord
from fedcore.run.engine.state import RunState
from fedcore.state import ModelFacts, ModelState
from fedcore.wire.events import EventSink, FiguresFound, Warned
from fedcore.wire.tasks import ModelRef

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
class BestModelKeeper:
    """Keeps the model that was evaluated best, as the run's state tells which that is.

    evaluated
        The last model that was evaluated, and in which round.
    """

    state: RunState
    emit: EventSink
    best: BestModel | None = field(default=None, init=False)
    evaluated: tuple[int, ModelState] | None = field(default=None, init=False)
    warned: bool = field(default=False, init=False)

    def evaluate(self, server_round: int, model: ModelState, metrics: Mapping[str, Any], *, best: bool) -> None:
        """A model was evaluated; best: better than all before."""
        self.evaluated = server_round, model
        self.state.selection.note_missing(metrics)
        if best:
            self._keep(server_round, model)

    def take_figures(self, figures: FiguresFound) -> None:
        """Take what the strategy made of replies, by which the model evaluated last may be the best."""
        last = self.evaluated
        if figures.source != "evaluate" or last is None or last[0] != figures.server_round:
            return
        if self.state.selection.judge_figures(figures.metrics):
            self._keep(*last)

    def warn_unjudged(self) -> None:
        """Say once that neither the evaluation nor the strategy's figures had the metric."""
        if self.state.selection.missing and not self.warned:
            self.warned = True
            self.emit(Warned(line=self.state.selection.missing))

    def _keep(self, server_round: int, model: ModelState) -> None:
        selection, spent = self.state.selection, self.state.budget.epsilon_spent
        assert selection.best is not None  # noqa: S101 - a model was the best
        said = selection.describe()
        self.best = BestModel(state=model, value=selection.best, said=said, rounds=server_round, epsilon=spent)


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
