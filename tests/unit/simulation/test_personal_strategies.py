"""Ditto, FedBN and FedPer from the run config to the last round: what is reported, and what the server never has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from fedcore.data import Split, client_data, load_digits
from fedcore.flower.apps.engine_app import LocalApp, LocalJob
from fedcore.flower.apps.supervised import supervised_app
from fedcore.flower.memory_app import load_app
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.training import OptimizerConfig, seeded

CLIENTS = 3
NORM = {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
HEAD = {"3.weight", "3.bias"}
KEPT: dict[str, set[str]] = {"fedavg": set(), "ditto": set(), "fedbn": NORM, "fedper": HEAD}


def perceptron(config: Any) -> nn.Module:
    with seeded(0):
        return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def digits(job: LocalJob) -> tuple[Split, Split]:
    return client_data(load_digits(), "labels:4", client=job.client - 1, clients=CLIENTS, seed=1)


def app() -> LocalApp:
    return supervised_app(model=perceptron, optimizer=lambda config: OptimizerConfig(lr=0.1), data=digits)


def simulated(strategy: str, aggregation: str, **config: Any) -> tuple[set[str], list[Any]]:
    """The tensors of the last model, and the evaluations."""
    events: list[Any] = []
    given = {"num-server-rounds": 3, "batch-size": 16, "strategy": strategy, **config}
    with load_app(app(), given) as found:
        run = Simulation(
            app=found.app,
            clients=CLIENTS,
            run_config=found.app.run_config,
            settings=JobSettings.from_mapping({"aggregation": aggregation, "w-max": 2048}),
            emit=events.append,
        )
        state = run.run().state
    assert state is not None
    done = [event for event in events if event.kind == "exchange-done"]
    assert all(event.survivors == ["client-1", "client-2", "client-3"] for event in done)
    return set(state), [event for event in done if not event.trains]


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize(
    ("strategy", "config", "better"), [("fedbn", {}, 0.005), ("fedper", {"personal-layers": "3.*"}, 0.05)]
)
def test_the_global_model_has_no_personal_tensor(
    strategy: str, config: dict[str, Any], better: float, aggregation: str
) -> None:
    tensors, evaluations = simulated(strategy, aggregation, **config)
    assert tensors == set(perceptron({}).state_dict()) - KEPT[strategy]
    _, plain = simulated("fedavg", aggregation)
    # With four labels each, a client's own layers suit it better than the mean of all.
    assert evaluations[-1].metrics["eval_acc"] > plain[-1].metrics["eval_acc"] + better


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_ditto_reports_both_models_and_sends_the_whole_global_one(aggregation: str) -> None:
    tensors, evaluations = simulated("ditto", aggregation, **{"ditto-lambda": 0.05})
    assert tensors == set(perceptron({}).state_dict())
    for one in evaluations:
        assert {"eval_acc", "eval_loss", "personal_eval_acc", "personal_eval_loss"} <= set(one.metrics)
    last = evaluations[-1].metrics
    assert last["personal_eval_acc"] > last["eval_acc"] + 0.05
    _, plain = simulated("fedavg", aggregation)
    # The global model of Ditto is FedAvg's; secure sums are of values that are rounded at random.
    within = 1e-6 if aggregation == "plain" else 0.02
    np.testing.assert_allclose(last["eval_acc"], plain[-1].metrics["eval_acc"], rtol=0, atol=within)
