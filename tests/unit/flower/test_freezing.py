"""Parameters that are frozen by the run config: not trained, not sent, and the rest trains as beside a frozen part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.raising import raises
from torch import nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError
from fedcore.flower.apps.engine_app import LocalApp, LocalJob
from fedcore.flower.apps.supervised import supervised_app
from fedcore.flower.memory_app import load_app
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.training import OptimizerConfig, seeded

FROZEN = ("body.weight", "body.bias", "norm.weight", "norm.bias")
BUFFERS = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
HEAD = ("head.weight", "head.bias")
_RNG = np.random.default_rng(1)
X = _RNG.normal(size=(4, 12, 3)).astype(np.float32)


def network(config: Any) -> nn.Module:
    with seeded(0):
        model = nn.Sequential()
        model.add_module("body", nn.Linear(3, 5))
        model.add_module("norm", nn.BatchNorm1d(5))
        model.add_module("head", nn.Linear(5, 2))
        return model


def frozen_by_hand(config: Any) -> nn.Module:
    model = network(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in FROZEN)
    return model


def data(job: LocalJob) -> tuple[Split, Split]:
    x = X[job.client - 1]
    return (Split(x=x, y=(x[:, 0] > 0).astype(np.int64)),) * 2


def app(model: Any = network) -> LocalApp:
    return supervised_app(model=model, optimizer=lambda config: OptimizerConfig(lr=0.1), data=data)


def simulated(client: LocalApp, aggregation: str = "plain", **config: Any) -> tuple[ModelState, list[Any]]:
    events: list[Any] = []
    given = {"num-server-rounds": 2, "batch-size": 4, **{key.replace("_", "-"): value for key, value in config.items()}}
    with load_app(client, given) as found:
        run = Simulation(
            app=found.app,
            clients=4,
            run_config=found.app.run_config,
            settings=JobSettings.from_mapping({"aggregation": aggregation, "w-max": 32}),
            emit=events.append,
        )
        state = run.run().state
    assert state is not None
    return state, [event for event in events if event.kind == "exchange-done" and event.trains]


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedadam", "fednova", "scaffold", "feddyn", "diloco"])
def test_the_rest_trains_as_it_does_beside_a_frozen_part(strategy: str) -> None:
    found, _ = simulated(app(), strategy=strategy, freeze="body.*, norm.*")
    assert tuple(found) == (*BUFFERS, *HEAD)
    expected, _ = simulated(app(frozen_by_hand), strategy=strategy)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)
    start = dict(network({}).named_parameters())
    assert all(np.abs(found[name] - start[name].detach().numpy()).max() > 1e-3 for name in HEAD)


def test_what_is_frozen_costs_no_bytes() -> None:
    whole, all_sent = simulated(app(), "secure", fraction_evaluate=0.0)
    part, less_sent = simulated(app(), "secure", fraction_evaluate=0.0, freeze="body.*")
    left_out = sum(whole[name].size for name in ("body.weight", "body.bias"))
    for one, other in zip(all_sent, less_sent, strict=True):
        fewer = {one.bytes_up[name] - other.bytes_up[name] for name in one.bytes_up}
        assert all(bytes_ >= 2 * left_out for bytes_ in fewer)  # 16 bits of a word at least
    assert set(whole) - set(part) == {"body.weight", "body.bias"}


def test_a_tensor_with_two_names_is_frozen_under_both() -> None:
    def tied(config: Any) -> nn.Module:
        with seeded(0):
            model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
        model[1].weight = model[0].weight
        return model

    assert list(app(tied).initial_arrays({"freeze": "0.weight"})) == ["0.bias", "1.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ("tail.*", {"check": "freeze-pattern", "match": r"'tail\.\*'.*body\.weight"}),
        ("*", {"check": "nothing-to-train"}),
    ],
)
def test_patterns_that_mean_nothing_are_refused(patterns: str, said: str) -> None:
    with raises(ConfigurationError, **said):
        app().initial_arrays({"freeze": patterns})


def test_a_model_that_is_drawn_anew_each_time_is_refused() -> None:
    drawn = app(lambda config: nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)))
    with raises(ConfigurationError, check="model-not-fixed", match=r"'0\.weight'"):
        drawn.initial_arrays({"freeze": "0.*"})
