"""The best model of a simulation, and the hash that names a model in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedcore.run.engine.state import RunState
from fedcore.state import ModelState
from fedcore.wire.events import EventSink, FiguresFound, Warned
from fedcore.wire.tasks import ModelRef

BEST_FILE: Final = "best.safetensors"
EVALUATED_FILE: Final = "evaluated.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestModel:
    """The model of a round that was evaluated best.

    value
        Of its metric.
    description
        The same in words.
    epsilon
        Spent by then.
    """

    state: ModelState
    value: float
    description: str
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
    _saved: BestModel | None = field(default=None, init=False)

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

    def save(self, folder: Path) -> dict[str, Any]:
        """What has changed since the last time, as JSON; models go into the folder."""
        selection, best = self.state.selection, None
        if self.best is not None and self.best is not self._saved:
            self._saved = self.best
            self.best.state.save(folder / BEST_FILE)
            best = {name: getattr(self.best, name) for name in ("value", "description", "rounds", "epsilon")}
        evaluated = None
        if selection.rule is not None and self.evaluated is not None:
            evaluated, model = self.evaluated
            model.save(folder / EVALUATED_FILE)
        return {"best": best, "evaluated": evaluated, "missing": selection.missing, "warned": self.warned}

    def restore(self, saved: Mapping[str, Any], folder: Path) -> None:
        """Take in what was saved once; to be called in the order in which it was saved."""
        selection = self.state.selection
        selection.missing, self.warned = saved["missing"], saved["warned"]
        if saved["best"] is not None and (folder / BEST_FILE).exists():  # a better one may have replaced it
            self.best = self._saved = BestModel(state=ModelState.open(folder / BEST_FILE), **saved["best"])
            selection.best = self.best.value
        if saved["evaluated"] is not None:
            self.evaluated = saved["evaluated"], ModelState.open(folder / EVALUATED_FILE)

    def _keep(self, server_round: int, model: ModelState) -> None:
        selection, spent = self.state.selection, self.state.budget.epsilon_spent
        assert selection.best is not None  # noqa: S101 - a model was the best
        self.best = BestModel(
            state=model,
            value=selection.best,
            description=selection.describe(),
            rounds=server_round,
            epsilon=spent,
        )


def model_ref(model: ModelState | None) -> ModelRef | None:
    """Names a model in memory by a hash over its layout and its bytes."""
    if model is None:
        return None
    digest = hashlib.sha256(model.layout.digest())
    for array in model.values():
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return ModelRef(sha256=digest.hexdigest(), size=model.layout.nbytes)
