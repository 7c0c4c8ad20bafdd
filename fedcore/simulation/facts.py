"""What the files of a simulation's models say of them."""

from __future__ import annotations

import time
from dataclasses import replace

from fedcore.flower.app import AppBundle
from fedcore.monitoring.run_record import RunRecord
from fedcore.simulation.models import BestModel
from fedcore.simulation.run import Simulation
from fedcore.state import ModelFacts
from fedcore.wire.base import moment


def model_facts(simulation: Simulation, record: RunRecord) -> ModelFacts:
    """What the file of a simulation's model says of it."""
    return ModelFacts(
        app=simulation.app.name,
        app_sha256=AppBundle.from_folder(simulation.app.folder).sha256,
        rounds=record.rounds(),
        epsilon=record.epsilon_spent(),
        delta=record.privacy.delta if record.privacy is not None else None,
        run_config=simulation.run_config,
        train_configs=simulation.configs,
        time=moment(time.time()),
    )


def best_facts(simulation: Simulation, record: RunRecord, best: BestModel) -> ModelFacts:
    """What the file of a simulation's best model says of it."""
    facts = model_facts(simulation, record)
    return replace(facts, kind="best", rounds=best.rounds, epsilon=best.epsilon, best=best.description)
