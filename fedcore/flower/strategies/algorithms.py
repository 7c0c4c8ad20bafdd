"""Strategies that Flower does not have, each a function of the clients' means, so that a secure sum is all they need.

Each inherits FedAvg's averaging: in secure mode over the one reply that stands for the cohort, in plain mode over all.
What else the clients do is in `fedcore.training.algorithms`; the name of the strategy reaches them in the
message's configuration, under the run config's own key, so that an owner's client refuses one that the run config does
not name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.apps.local_algorithms import CLIENTS_WEIGH_ONE, STRATEGY
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.training.algorithms import ALPHA, BOUND, CONTROL, LENGTH, NOT_CLIPPED

Arrays = dict[str, NDArray[Any]]


class AlgorithmStrategy(FedAvg):
    """What they share. One object leads one run.

    strategy: its name.
    tells_clients: whether they have to know it.
    weighs_one: whether every client weighs 1, and not its number of examples.
    needs: the metric of the training that it reads, "" for none.
    trained: names of the tensors that the clients' steps change; buffers, such as running means, are averaged as under
        FedAvg. None: every floating point tensor.
    """

    mean_only = True
    strategy: ClassVar[str]
    tells_clients: ClassVar[bool] = True
    weighs_one: ClassVar[bool] = True
    needs: ClassVar[str] = ""
    adds_up: ClassVar[str] = ""

    def __init__(self, *, trained: Collection[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.trained = trained
        self.clients = 0
        self.model: ArrayRecord = ArrayRecord()

    # --- a round --------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages, with what the clients have to know; raises ConfigurationError under privacy noise,
        and in a run in which no round waits for its clients."""
        if self.needs and isinstance(grid, ExchangeGrid) and grid.noised:
            raise ConfigurationError(
                f"strategy {self.strategy} reads {self.needs} of the training, and the metrics of a training have no "
                "noise, so differential privacy leaves them out of the sum: unset dp-epsilon, or take a strategy that "
                "reads the model alone (fedavg, fedavgm, fedprox, diloco, scaffold, ...)",
                check="reads-metrics",
            )
        if self.adds_up and isinstance(grid, ExchangeGrid) and grid.compressed:
            raise ConfigurationError(
                f"strategy {self.strategy} adds up {self.adds_up} over all rounds, and what compression does to a mean "
                "adds up with them: unset upload-fraction, and field-bits below 16, or take a strategy that reads the "
                "mean of a round alone (fedavg, fedavgm, fedprox, fedadam, diloco, ...)",
                check="adds-up-means",
            )
        if self.tells_clients and isinstance(grid, ExchangeGrid) and grid.buffered:
            raise ConfigurationError(
                f"strategy {self.strategy} relates what clients make in one round, and in a run with asynchrony = "
                '"buffered" a sum holds updates of several: take fedbuff, or a strategy that reads the mean alone '
                "(fedavg, fedavgm, fedadam, diloco, ...)",
                check="one-round",
            )
        self.model = arrays
        if self.tells_clients:
            config[STRATEGY] = self.strategy
        if self.weighs_one:
            config[CLIENTS_WEIGH_ONE] = True
        config.update(self.client_settings())
        sent = self.sent(arrays)
        if isinstance(grid, ExchangeGrid):
            grid.extra_tensors = frozenset(set(sent) - set(arrays))
        messages = list(super().configure_train(server_round, sent, config, grid))
        # Most that were ever connected: the paper's N, of which a round may have a part.
        self.clients = max(self.clients, len(list(grid.get_node_ids())))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model that the algorithm makes of the clients' mean."""
        replies = list(replies)
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return mean, metrics
        if self.needs and self.needs not in (metrics or {}):
            raise AppError(
                f"the clients' replies have no metric {self.needs!r}: strategy {self.strategy} needs a ClientApp of "
                "fedcore.supervised_app or fedcore.local_app"
            )
        part = min(self._clients_in(replies) / self.clients, 1.0) if self.weighs_one else 1.0
        made = self.step(values_of(self.model), values_of(mean), metrics or MetricRecord(), part)
        names = list(self.model)
        return ArrayRecord({name: Array(made[name]) if name in made else mean[name] for name in names}), metrics

    def _clients_in(self, replies: Iterable[Message]) -> float:
        """How many clients are in the mean, where each weighs 1: in secure mode one reply says so for all."""
        return sum(_number(_metrics_of(one), self.weighted_by_key) for one in replies if not one.has_error())

    # --- for the algorithms ---------------------------------------------------------------------------------------

    def client_settings(self) -> Mapping[str, float]:
        """What else the clients have to know."""
        return {}

    def sent(self, model: ArrayRecord) -> ArrayRecord:
        """The model, and what travels with it."""
        return model

    def step(self, model: Arrays, mean: Arrays, metrics: MetricRecord, part: float) -> Arrays:
        """The new values of the tensors that are not simply their mean, in their dtypes.

        Args:
            model: that the round began with.
            mean, metrics: of the clients.
            part: |S| / N, clients in the sum to all, where each weighs 1.
        """
        return {}

    def names(self, model: Arrays) -> list[str]:
        """The tensors that the algorithm is about."""
        if self.trained is not None:
            return [name for name in model if name in self.trained]
        return [name for name, values in model.items() if values.dtype.kind == "f"]


class FedNova(AlgorithmStrategy):
    """Wang et al. 2020, equation 11: x + (mean length) * (mean of (x_i - x) / length_i)."""

    strategy = "fednova"
    weighs_one = False
    needs = LENGTH

    def step(self, model: Arrays, mean: Arrays, metrics: MetricRecord, part: float) -> Arrays:
        length = _number(metrics, LENGTH)
        return {name: _like(model[name], _from(model, mean, name, length)) for name in self.names(model)}


class Scaffold(AlgorithmStrategy):
    """Karimireddy et al. 2020, algorithm 1: x + eta_g mean(y_i - x), c + |S|/N mean(c_i+ - c_i).

    server_rate: eta_g. trained is needed: there is a control variate for each of these tensors.
    """

    strategy = "scaffold"
    adds_up = "the changes of the clients' control variates"

    def __init__(self, *, trained: Collection[str] | None = None, server_rate: float = 1.0, **options: Any) -> None:
        if trained is None:
            raise ConfigurationError(
                "strategy scaffold has to know which tensors are trained: make_strategy(config, "
                "trained=client.trained(config)), as averaging_server does",
                check="trained-tensors",
            )
        super().__init__(trained=trained, **options)
        self.server_rate = server_rate
        self.control: Arrays = {}

    def sent(self, model: ArrayRecord) -> ArrayRecord:
        values = values_of(model)
        for name in self.names(values):
            self.control.setdefault(name, np.zeros_like(values[name]))
        controls = {f"{CONTROL}{name}": Array(control) for name, control in self.control.items()}
        return ArrayRecord({**model, **controls})

    def step(self, model: Arrays, mean: Arrays, metrics: MetricRecord, part: float) -> Arrays:
        for name, control in self.control.items():
            self.control[name] = _like(control, control + part * (mean[f"{CONTROL}{name}"] - control))
        return {name: _like(model[name], _from(model, mean, name, self.server_rate)) for name in self.names(model)}


class FedDyn(AlgorithmStrategy):
    """Acar et al. 2021, algorithm 1: h <- h - alpha |S|/N mean(w_k - x), then x <- mean(w_k) - h / alpha.

    Kept divided by alpha, as the sum of the means: x <- mean(w_k) + sum of |S|/N mean(w_k - x).
    """

    strategy = "feddyn"

    adds_up = "the clients' moves"

    def __init__(self, *, alpha: float = 0.01, **options: Any) -> None:
        super().__init__(**options)
        self.alpha = alpha
        self.moved: Arrays = {}

    def client_settings(self) -> Mapping[str, float]:
        return {ALPHA: self.alpha}

    def step(self, model: Arrays, mean: Arrays, metrics: MetricRecord, part: float) -> Arrays:
        made = {}
        for name in self.names(model):
            move = part * (mean[name].astype(np.float64) - model[name])
            self.moved[name] = self.moved.get(name, 0.0) + move
            made[name] = _like(model[name], mean[name] + self.moved[name])
        return made


class AdaptiveClipping(AlgorithmStrategy):
    """Andrew et al. 2021, section 2: the mean of the clipped updates, and C <- C exp(-eta_C (mean b - gamma)).

    first: C of round 1.
    quantile: gamma, the share of updates that should not be clipped.
    rate: eta_C.
    """

    strategy = "adaptive-clipping"
    needs = NOT_CLIPPED

    def __init__(self, *, first: float = 0.1, quantile: float = 0.5, rate: float = 0.2, **options: Any) -> None:
        super().__init__(**options)
        if quantile >= 1:
            raise ConfigurationError(f"clip-quantile must be less than 1, not {quantile:g}")
        self.bound, self.quantile, self.rate = first, quantile, rate

    def client_settings(self) -> Mapping[str, float]:
        return {BOUND: self.bound}

    def step(self, model: Arrays, mean: Arrays, metrics: MetricRecord, part: float) -> Arrays:
        self.bound *= math.exp(-self.rate * (_number(metrics, NOT_CLIPPED) - self.quantile))
        return {}


class DiLoCo(AlgorithmStrategy):
    """Douillard et al. 2023, algorithm 1: SGD with Nesterov momentum whose gradient is mean(x - x_i).

    server_rate, server_momentum: section 3.1. `fedcore.training.averaging` has the same step between ranks.
    """

    strategy = "diloco"
    tells_clients = False

    def __init__(self, *, server_rate: float = 0.7, server_momentum: float = 0.9, **options: Any) -> None:
        super().__init__(**options)
        self.server_rate, self.server_momentum = server_rate, server_momentum
        self.momentum: Arrays = {}

    def step(self, model: Arrays, mean: Arrays, metrics: MetricRecord, part: float) -> Arrays:
        made = {}
        for name in self.names(model):
            gradient = model[name].astype(np.float64) - mean[name]
            self.momentum[name] = self.server_momentum * self.momentum.get(name, 0.0) + gradient
            step = gradient + self.server_momentum * self.momentum[name]
            made[name] = _like(model[name], model[name] - self.server_rate * step)
        return made


def values_of(record: ArrayRecord) -> Arrays:
    """The arrays of a record by their names."""
    return {name: array.numpy() for name, array in record.items()}


def _from(model: Arrays, mean: Arrays, name: str, factor: float) -> NDArray[Any]:
    """Model + factor * (mean - model), in float64."""
    start = model[name].astype(np.float64)
    array: NDArray[Any] = start + factor * (mean[name] - start)
    return array


def _like(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(new, dtype=old.dtype)


def _metrics_of(reply: Message) -> MetricRecord:
    return next(iter(reply.content.metric_records.values()))


def _number(metrics: MetricRecord, name: str) -> float:
    value = metrics[name]
    if isinstance(value, list):
        raise AppError(f"the metric {name!r} must be one number")
    return float(value)
