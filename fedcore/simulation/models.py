"""What a simulation says of the models that it leaves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from fedcore.flower.app import AppBundle
from fedcore.record import RunRecord
from fedcore.state import ModelFacts, ModelState
from fedcore.wire import ModelRef

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
