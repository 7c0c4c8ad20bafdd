"""The model is tested at the server after every round, and whoever leads the run hears of it and may end it there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from support.raising import raises
from torch import nn

from fedcore import LocalJob, averaging_server, supervised_app
from fedcore.data import Split
from fedcore.errors import ConfigurationError
from fedcore.flower.apps.personalization import Personal
from fedcore.flower.memory_app import load_app
from fedcore.flower.serverside import ServerAppOutcome
from fedcore.flower.strategies.registry import STRATEGIES
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.training import OptimizerConfig, seeded
from fedcore.wire.events import FiguresFound

Enough = Callable[[FiguresFound], bool]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)
TEST = Split(x=X, y=Y)


def model(config: Mapping[str, Any]) -> nn.Module:
    with seeded(3):
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def data(job: LocalJob) -> tuple[Split, Split]:
    rows = np.arange(int(job.node["partition-id"]), len(TEST), int(job.node["num-partitions"]))
    return TEST.take(rows), TEST.take(rows[:2])


def client(**options: Any) -> Any:
    return supervised_app(model=model, optimizer=lambda config: OptimizerConfig(lr=0.5), data=data, **options)


def run(
    app: Any, server: Any, enough: Enough | None = None, aggregation: str = "secure", **config: Any
) -> tuple[Simulation, ServerAppOutcome]:
    chosen = {
        "num-server-rounds": 3, "local-epochs": 1, "batch-size": 8, "seed": 0, "fraction-evaluate": 0.0,
        "central-test": 60, **{key.replace("_", "-"): value for key, value in config.items()},
    }  # fmt: skip
    with load_app((app, server), chosen) as found:
        simulation = Simulation(
            app=found.app,
            clients=4,
            run_config=found.app.run_config,
            settings=JobSettings.from_mapping({"aggregation": aggregation}),
            enough=enough,
        )
        return simulation, simulation.run()


def accuracy(weights: Mapping[str, np.ndarray]) -> float:
    hidden = X @ weights["0.weight"].T + weights["0.bias"]
    return float(((hidden @ weights["1.weight"].T + weights["1.bias"]).argmax(axis=1) == Y).mean())


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_the_model_is_tested_before_the_first_round_and_after_each(aggregation: str) -> None:
    app = client()
    heard: list[tuple[int, float]] = []

    def enough(found: FiguresFound) -> bool:
        assert found.source == "server"
        heard.append((found.server_round, found.metrics["eval_acc"]))
        return False

    simulation, outcome = run(app, averaging_server(app, test=lambda config: TEST), enough, aggregation)
    assert [number for number, _ in heard] == [0, 1, 2, 3]
    assert heard[-1][1] == pytest.approx(accuracy(dict(outcome.state.items())))
    assert heard[-1][1] > heard[0][1]
    assert simulation.results["server"]["3"]["eval_acc"] == heard[-1][1]
    assert not outcome.stopped


@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - {"ditto", "fedbn", "fedper", "fedbuff"}))
def test_of_every_strategy_the_model_is_tested(strategy: str) -> None:
    app = client()
    server = averaging_server(app, test=lambda config: TEST)
    simulation, outcome = run(app, server, strategy=strategy, num_server_rounds=1)
    found = simulation.results["server"]["1"]["eval_acc"]
    assert found == pytest.approx(accuracy(dict(outcome.state.items())))


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_what_is_enough_ends_the_run_with_that_rounds_model(aggregation: str) -> None:
    app = client()
    heard: list[float] = []

    def enough(found: FiguresFound) -> bool:
        heard.append(found.metrics["eval_acc"])
        return found.server_round == 2

    server = averaging_server(app, test=lambda config: TEST)
    simulation, outcome = run(app, server, enough, aggregation, num_server_rounds=50)
    assert outcome.stopped == "what was found in round 2 was enough"
    assert accuracy(dict(outcome.state.items())) == pytest.approx(heard[2])
    assert len(heard) == 3
    assert len(simulation.results["train"]) == 2


def test_of_a_large_test_set_a_fixed_sample_is_taken() -> None:
    app = client()
    found = []
    for _ in range(2):
        simulation, _ = run(app, averaging_server(app, test=lambda config: TEST), central_test=8, num_server_rounds=1)
        found.append(simulation.results["server"])
    # The sum's low digits are random; another sample would differ in the first ones.
    assert found[0]["0"] == found[1]["0"]
    assert found[0]["1"] == pytest.approx(found[1]["1"], rel=1e-6)
    assert (found[0]["1"]["eval_acc"] * 8).is_integer()


def test_without_the_key_nothing_is_read() -> None:
    app = client()

    def unread(config: Mapping[str, Any]) -> Split:
        raise AssertionError

    simulation, _ = run(app, averaging_server(app, test=unread), central_test=0, num_server_rounds=1)
    assert simulation.results["server"] == {}


@pytest.mark.parametrize(
    ("options", "test", "most", "says"),
    [
        ({}, None, 60, {"check": "no-test-set"}),
        ({}, lambda config: TEST, -1, {"check": "test-examples", "match": "-1"}),
        (
            {"personal": lambda config: Personal(patterns=("1.*",))},
            lambda config: TEST,
            60,
            {"check": "partial-model", "match": r"'1\.bias'"},
        ),
    ],
)
def test_what_cannot_be_tested_is_refused(options: dict[str, Any], test: Any, most: int, says: dict[str, str]) -> None:
    app = client(**options)
    with raises(ConfigurationError, **says):
        run(app, averaging_server(app, test=test), central_test=most)
