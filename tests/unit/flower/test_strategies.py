"""Which strategy a run config names, and with what."""

import pytest
from flwr.serverapp import strategy as flower
from support.raising import raises

from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.memory_app import READ_TOO
from fedcore.flower.strategies import algorithms as ours
from fedcore.flower.strategies.buffered import FedBuff
from fedcore.flower.strategies.registry import STRATEGIES, STRATEGY_KEYS, make_strategy, participation


@pytest.mark.parametrize(
    ("name", "kind", "attributes"),
    [
        ("fedavg", flower.FedAvg, {}),
        ("fedprox", flower.FedProx, {"proximal_mu": 0.25}),
        ("fedavgm", flower.FedAvgM, {"server_learning_rate": 0.5, "server_momentum": 0.75}),
        ("fedadam", flower.FedAdam, {"eta": 0.5, "beta_1": 0.125, "beta_2": 0.625, "tau": 0.0625}),
        ("fedyogi", flower.FedYogi, {"eta": 0.5, "beta_1": 0.125, "beta_2": 0.625, "tau": 0.0625}),
        ("fedadagrad", flower.FedAdagrad, {"eta": 0.5, "tau": 0.0625}),
        ("fedbuff", FedBuff, {"server_learning_rate": 0.5, "server_momentum": 0.75}),
        ("scaffold", ours.Scaffold, {"server_rate": 0.5}),
        ("feddyn", ours.FedDyn, {"alpha": 0.375}),
        ("diloco", ours.DiLoCo, {"server_rate": 0.5, "server_momentum": 0.75}),
        ("adaptive-clipping", ours.AdaptiveClipping, {"bound": 2.0, "quantile": 0.25, "rate": 0.5}),
    ],
)
def test_each_takes_its_own_keys(name: str, kind: type, attributes: dict[str, float]) -> None:
    config = {
        "proximal-mu": 0.25, "server-lr": 0.5, "server-momentum": 0.75, "beta-1": 0.125, "beta-2": 0.625, "tau": 0.0625,
        "feddyn-alpha": 0.375, "clip-first": 2.0, "clip-quantile": 0.25, "clip-rate": 0.5,
    }  # fmt: skip
    strategy = make_strategy({**config, "strategy": name}, trained=["weight"], min_train_nodes=3)
    assert type(strategy) is kind
    assert strategy.min_train_nodes == 3
    assert {key: getattr(strategy, key) for key in attributes} == attributes


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_what_is_missing_or_0_leaves_the_default(name: str) -> None:
    bare, zero = (make_strategy({"strategy": name, **config}, trained=["weight"]) for config in ({}, {"server-lr": 0}))
    assert {key: value for key, value in vars(bare).items() if isinstance(value, float)} == {
        key: value for key, value in vars(zero).items() if isinstance(value, float)
    }
    assert getattr(bare, "eta", 1.0) > 0


def test_without_a_name_it_is_fedavg() -> None:
    assert type(make_strategy({})) is flower.FedAvg


def test_another_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownKey, match=r"'fedadm'.*'fedadam'"):
        make_strategy({"strategy": "fedadm"})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"strategy": "fedprox", "proximal-mu": 0.0}, {"match": "proximal-mu = 0"}),
        ({"strategy": "fedadam", "beta-1": 1.0}, {"match": "beta-1"}),
        ({"strategy": "fedyogi", "tau": 0.0}, {"match": "tau = 0"}),
        ({"strategy": "fedavgm", "server-lr": -1.0}, {"match": "server-lr = -1"}),
        ({"strategy": "feddyn", "feddyn-alpha": 0.0}, {"match": "feddyn-alpha = 0"}),
        ({"strategy": "adaptive-clipping", "clip-quantile": 1.5}, {"match": "clip-quantile"}),
        ({"strategy": "scaffold"}, {"check": "trained-tensors", "match": "scaffold"}),
    ],
)
def test_values_out_of_range_are_refused(config: dict[str, float | str], message: dict[str, str]) -> None:
    with raises(ConfigurationError, **message):
        make_strategy(config)


def test_an_app_need_not_say_how_many_nodes_it_waits_for() -> None:
    assert participation({}) == participation({"min-nodes": 1})


def test_an_app_without_a_folder_knows_the_keys_of_all_strategies() -> None:
    assert set(STRATEGY_KEYS) <= set(READ_TOO)
