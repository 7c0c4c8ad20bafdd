"""Strategies by their names in the run config, and the ServerApp that most apps need.

All of them use nothing but the weighted mean of what the clients send, so they work with secure aggregation as they
are. A federation is adaptive where the server treats the mean update as a gradient (Reddi et al. 2021, arXiv
2003.00295). Flower has some of them, `algorithm_strategies` the rest; docs/strategies.md says what each does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import ConfigRecord, Context, MetricRecord, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from fedcore.errors import ConfigurationError
from fedcore.flower.apps.engine_app import LocalApp
from fedcore.flower.apps.personalization import DITTO_KEY, LAYERS_KEY, PREFIX
from fedcore.flower.apps.server_tests import TestSet, server_test
from fedcore.flower.apps.supervised import SupervisedApp
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.strategies import algorithms as ours
from fedcore.flower.strategies.buffered import FedBuff
from fedcore.flower.strategies.metrics import finish
from fedcore.flower.strategies.patience import LossFallsNoMore, LossHistory
from fedcore.run.settings import ROUNDS_KEY
from fedcore.system.plugins import Registry, must_derive
from fedcore.training.algorithms import ALPHA
from fedcore.training.metrics import accuracy
from fedcore.training.seeds import derive_seed

NAME = "strategy"
SERVER_RATE = "server-lr"


@dataclass(frozen=True, slots=True)
class _Choice:
    """One strategy.

    make: its class.
    keys: of the run config -> parameter of its class.
    positive: keys that cannot be 0.
    client_keys: of the run config, which the clients alone read.
    """

    make: Callable[..., FedAvg]
    keys: Mapping[str, str]
    positive: tuple[str, ...] = ()
    client_keys: tuple[str, ...] = ()


_MOMENTS = {"beta-1": "beta_1", "beta-2": "beta_2"}
_ADAPTIVE = {SERVER_RATE: "eta", "tau": "tau"}
_OWN: Mapping[str, _Choice] = {
    "fedavg": _Choice(flower.FedAvg, {}),
    "fedprox": _Choice(flower.FedProx, {"proximal-mu": "proximal_mu"}, ("proximal-mu",)),
    "fedavgm": _Choice(flower.FedAvgM, {SERVER_RATE: "server_learning_rate", "server-momentum": "server_momentum"}),
    "fedadam": _Choice(flower.FedAdam, {**_ADAPTIVE, **_MOMENTS}, ("tau",)),
    "fedyogi": _Choice(flower.FedYogi, {**_ADAPTIVE, **_MOMENTS}, ("tau",)),
    "fedadagrad": _Choice(flower.FedAdagrad, _ADAPTIVE, ("tau",)),
    "fednova": _Choice(ours.FedNova, {}),
    "scaffold": _Choice(ours.Scaffold, {SERVER_RATE: "server_rate"}),
    "feddyn": _Choice(ours.FedDyn, {ALPHA: "alpha"}, (ALPHA,)),
    "diloco": _Choice(ours.DiLoCo, {SERVER_RATE: "server_rate", "server-momentum": "server_momentum"}),
    "adaptive-clipping": _Choice(
        ours.AdaptiveClipping,
        {"clip-first": "first", "clip-quantile": "quantile", "clip-rate": "rate"},
        ("clip-first", "clip-quantile", "clip-rate"),
    ),
    "fedbuff": _Choice(FedBuff, {SERVER_RATE: "server_learning_rate", "server-momentum": "server_momentum"}),
    "ditto": _Choice(flower.FedAvg, {}, client_keys=(DITTO_KEY,)),
    "fedbn": _Choice(flower.FedAvg, {}),
    "fedper": _Choice(flower.FedAvg, {}, client_keys=(LAYERS_KEY,)),
}

STRATEGY_KEYS = sorted({key for choice in _OWN.values() for key in (*choice.keys, *choice.client_keys)})
"""What any of fedcore's own reads of the run config, in addition to `strategy`."""


def _choice(name: str, plugin: Any) -> _Choice:
    """A class of Flower's kind, which may say what it reads of the run config: `config_keys` and `positive_keys`."""
    must_derive(plugin, FedAvg)
    return _Choice(plugin, getattr(plugin, "config_keys", {}), tuple(getattr(plugin, "positive_keys", ())))


STRATEGIES: Registry[_Choice] = Registry(
    "strategy", "fedcore.strategies", _OWN, where="strategy in the run config", accept=_choice
)


def make_strategy(config: UserConfig, *, trained: Collection[str] | None = None, **options: Any) -> FedAvg:
    """The strategy that the run config names, "fedavg" where it names none.

    Of the run config it reads `strategy` and the keys of that strategy alone: `proximal-mu` (FedProx), `server-lr` (0
    for the default of its own: 1 for FedAvgM and SCAFFOLD, 0.1 for FedAdam and FedAdagrad, 0.01 for FedYogi, 0.7 for
    DiLoCo), `server-momentum` (FedAvgM, DiLoCo), `beta-1`, `beta-2` (FedAdam, FedYogi), `tau` (these and FedAdagrad),
    `feddyn-alpha` (FedDyn), `clip-first`, `clip-quantile` and `clip-rate` (adaptive clipping); a key that is missing
    leaves the default. A strategy from a package reads the keys that its class names.

    Raises UnknownName for a strategy that is not installed, ConfigurationError for a value out of range.

    Args:
        trained: names of the tensors that the clients train (`LocalApp.trained`), which SCAFFOLD needs; by default all
            of floating point.
        options: whatever else Flower's FedAvg takes.
    """
    name = str(config.get(NAME, "fedavg"))
    choice = STRATEGIES[name]
    values = {key: float(config[key]) for key in choice.keys if key in config}
    for key, value in values.items():
        if not 0 <= value < float("inf") or (key in choice.positive and value == 0):
            raise ConfigurationError(f"{key} = {value:g} does not fit strategy {name}")
        if key.startswith("beta-") and value >= 1:
            raise ConfigurationError(f"{key} must be less than 1, not {value:g}")
    chosen = {choice.keys[key]: value for key, value in values.items() if key != SERVER_RATE or value}
    if issubclass(cast(type, choice.make), ours.AlgorithmStrategy):
        options["trained"] = trained
    return choice.make(**options, **chosen)


class AveragingServer(ServerApp):
    """What `averaging_server` makes.

    reports: names of all metrics that its evaluations can have; None if its strategy may make others of them.
    """

    def __init__(self, *, reports: frozenset[str] | None) -> None:
        super().__init__()
        self.reports = reports


def averaging_server(
    client: LocalApp, *, test: TestSet | None = None, strategy: Callable[..., FedAvg] = make_strategy
) -> ServerApp:
    """A ServerApp that runs the strategy of the run config, from the initial weights that the ClientApp's model has.

    Where the app's `columns` name statistics that the clients need, it asks for them first, sets them in the model's
    layers that stand for columns (`Standardise`, `Rescale`), and sends them along in every round. A run that begins
    with an earlier model of the app keeps that model's statistics, and asks nobody. The sums that the
    clients report for the ClientApp's metrics become figures of the whole federation (`finish`), the last of which it
    prints, with a hint if the test loss rises. Of the run config it reads `num-server-rounds`, `min-nodes`,
    `fraction-train` and `fraction-evaluate` (1 where they are missing), `seed`, which decides the nodes of a round,
    `patience`, after how many rounds without a lower test loss the run ends, and what `make_strategy` reads.

    Args:
        test: reads a test set where the ServerApp runs. With `central-test` = N in the run config the model is tested
            on N examples of it before the first round and after each, as Flower's `evaluate_fn`; most want
            `fraction-evaluate` = 0 then.
        strategy: makes another than the run config names; it is called as `make_strategy` is.
    """
    app = AveragingServer(reports=_reported(client) if strategy is make_strategy else None)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        # Flower draws the nodes of a round from Python's own generator.
        random.seed(derive_seed("sampled nodes", int(config["seed"])))
        earlier = client.statistics_in(config, grid.initial if isinstance(grid, ExchangeGrid) else None)
        losses = LossHistory.of(config)
        known = client.columns.ask(grid, config, int(config.get("min-nodes", 1)), earlier=earlier)
        options = {**participation(config), "evaluate_metrics_aggr_fn": losses.watching(finish(client.metrics))}
        chosen, initial = (
            strategy(config, trained=client.trained(config), **options),
            client.initial_arrays(config, known),
        )
        if isinstance(grid, ExchangeGrid) and type(chosen) in (
            flower.FedAvg,
            flower.FedProx,
        ):  # others keep what they sent
            grid.first_arrays = initial
        try:
            result = chosen.start(
                grid=grid,
                initial_arrays=initial,
                num_rounds=int(config[ROUNDS_KEY]),
                train_config=ConfigRecord(known),
                evaluate_config=ConfigRecord(known),
                evaluate_fn=losses.limiting(server_test(client, config, test, known)),
            )
            lines = [_figures(client, result.evaluate_metrics_clientapp), losses.hint()]
        except LossFallsNoMore as enough:
            lines = [f"the run ends early: {enough}", losses.hint()]
        for line in filter(None, lines):
            print(line, flush=True)  # noqa: T201 - what a ServerApp prints comes home with the run

    return app


def _is_flowers(strategy: FedAvg) -> bool:
    """Whether it is one of Flower's own, which keep no model before the last that they sent."""
    return type(strategy) in vars(flower).values()


def _reported(client: LocalApp) -> frozenset[str] | None:
    """What tests of the ClientApp's model find, at clients and at the server, with those of clients' own models.

    None if a function of the app's own tests it.
    """
    if not isinstance(client, SupervisedApp):
        return None
    names = {"eval_loss", *(metric.name for metric in client.metrics if metric is not accuracy)}
    names |= {"eval_acc"} if any(metric.name == accuracy.name for metric in client.metrics) else set()
    return frozenset(start + name for name in names for start in ("", PREFIX))


def _figures(client: LocalApp, rounds: Mapping[int, MetricRecord]) -> str:
    """A line with the last figures that are read off sums; nothing if there are none."""
    last = max(rounds, default=0)
    names = [metric.name for metric in client.metrics if last and metric.name in rounds[last]]
    figures = "  ".join(f"{name} {rounds[last][name]:.4f}" for name in names)
    return f"round {last}: {figures}" if figures else ""


def participation(config: UserConfig) -> dict[str, float | int]:
    """How many nodes take part in a round; where a fraction of them does, one is enough."""
    nodes = int(config.get("min-nodes", 1))  # a federation waits for the clients of a run by itself
    participation: dict[str, float | int] = {"min_available_nodes": nodes}
    for task in ("train", "evaluate"):
        fraction = float(config.get(f"fraction-{task}", 1.0))
        participation[f"fraction_{task}"] = fraction
        participation[f"min_{task}_nodes"] = nodes if fraction == 1 else int(fraction > 0)
    return participation
