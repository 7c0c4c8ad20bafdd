"""A ServerApp that is ended before its own end."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedcore.errors import BudgetSpent
from fedcore.flower.app import FlowerApp
from fedcore.flower.serverside import ServerAppOutcome, run_server_app
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.state import ModelState

STEADY = Path(__file__).parents[2] / "apps" / "steady"


@dataclass
class Limited:
    """An ExchangeBackend that adds 1 to every weight, for `exchanges` exchanges; evaluations get no reply."""

    exchanges: int
    models: list[np.ndarray] = field(default_factory=list)

    def nodes(self) -> list[int]:
        return [1, 2, 3]

    def report_figures(self, figures: object) -> None:
        del figures

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        if request.message_type == "evaluate":
            return []
        assert request.model is not None
        self.models.append(request.model["weight"].copy())
        if len(self.models) > self.exchanges:
            raise BudgetSpent("privacy-budget: spent")
        state = ModelState.from_arrays({"weight": request.model["weight"] + np.float32(1)})
        return [ExchangeReply(node=0, state=state, examples=3, metrics={})]


def run(backend: Limited, strategy: str) -> ServerAppOutcome:
    app = FlowerApp.load(STEADY)
    config = {**app.run_config, "size": 10, "num-server-rounds": 3, "strategy": strategy}
    return run_server_app(app, backend=backend, run="r", run_config=config, aggregation="secure")


@pytest.mark.parametrize("strategy", ["FedAvg", "FedAdam"])
def test_a_spent_budget_leaves_the_newest_model_of_the_strategy(strategy: str) -> None:
    """Not the last sum: FedAdam made something else of it."""
    backend = Limited(exchanges=2)
    outcome = run(backend, strategy)
    assert outcome.stopped == "privacy-budget: spent"
    assert outcome.state is not None
    np.testing.assert_array_equal(outcome.state["weight"], backend.models[-1])
    assert (backend.models[-1] == 2).all() == (strategy == "FedAvg")


def test_no_reply_to_an_evaluation_is_no_failure() -> None:
    outcome = run(Limited(exchanges=3), "FedAvg")
    assert outcome.stopped == ""
    assert outcome.state is not None
    assert (outcome.state["weight"] == 3).all()


def test_what_is_to_be_done_between_the_import_and_the_run() -> None:
    app, backend, seen = FlowerApp.load(STEADY), Limited(exchanges=3), []
    config = {**app.run_config, "size": 10, "num-server-rounds": 1}
    module = app.serverapp.partition(":")[0]

    def loaded() -> None:
        seen.append((module in sys.modules, len(backend.models)))

    sys.modules.pop(module, None)
    run_server_app(app, backend=backend, run="r", run_config=config, aggregation="secure", on_loaded=loaded)
    assert seen == [(True, 0)]
