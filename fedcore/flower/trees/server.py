"""The ServerApp of boosted trees: asks for the sums of each level, and grows the trees.

A round of Flower's loop is one tree. All that it asks are queries of the same clients, so in secure mode the server
sees sums over all of them. A sum over other clients or other rows than the first is of no use, since a child's
histogram is the difference of two: the same clients are asked again, and in the end the run fails by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedcore.data.statistics import Bounds, Statistics
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.apps.statistics import federated_statistics, node_ids
from fedcore.flower.first_model.messages import QUERIES_ALONE
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.records import arrays_from_state
from fedcore.flower.trees.client import COUNTS, GROW, PREFIX, SUMS, TEST, TreesApp
from fedcore.run.encoding_plan import QUERY_VALUES
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Cuts, Ensemble, Scale, TreeGrowth
from fedcore.trees.evaluation import figures_of
from fedcore.trees.settings import LOGISTIC

ROUNDS: Final = "num-server-rounds"
FINE_BINS: Final = 1000
"""Cells between the bounds of a column, at whose edges bins may begin."""
MOST_BINS: Final = 256
_ATTEMPTS: Final = 4
_WAIT: Final = 2.0
_COUNT_NUMBERS: Final = 2


def trees_server(client: TreesApp) -> ServerApp:
    """A ServerApp that grows boosted trees over the sites of `client`, a tree in each round.

    It asks for histograms of the columns first, whose quantiles are the bins, and for the mean of the target. Of the
    run config it reads `num-server-rounds` (trees), `min-nodes`, `test-every` (rounds between two tests, 0 for none),
    `bins` (of a feature, 32 by default), and what `boosting_settings` reads. A run that begins with an earlier model of
    the app continues with its bins and settings, up to `num-server-rounds` trees.
    """
    app = ServerApp()
    setattr(app, QUERIES_ALONE, True)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        earlier = grid.initial if isinstance(grid, ExchangeGrid) else None
        rounds = int(config[ROUNDS])
        bounds = client.columns.bounds
        if bounds is None:
            raise ConfigurationError("boosted trees need bounds for each column by its name", check="bounds-needed")
        nodes = node_ids(grid, int(config.get("min-nodes", 1)))
        sites = Sites(grid, nodes)
        statistics = sites.statistics(bounds(config))
        ensemble = _started(config, client.names(config), statistics, rounds, earlier)
        initial = _record(ensemble) if earlier is None else arrays_from_state(earlier)
        strategy = TreesStrategy(sites, ensemble, _scale(ensemble, statistics), int(config.get("test-every", 1)))
        strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds - len(ensemble.trees))

    return app


def boosting_settings(config: UserConfig) -> BoostingSettings:
    """From the run config: `objective`, `max-depth`, `learning-rate`, `reg-lambda`, `gamma`, `min-child-weight`.

    What is not there is as in XGBoost. Raises ConfigurationError.
    """
    keys = ("objective", "max_depth", "learning_rate", "reg_lambda", "gamma", "min_child_weight")
    values: dict[str, Any] = {key: config[name] for key in keys if (name := key.replace("_", "-")) in config}
    return BoostingSettings(**values)


@dataclass(eq=False)
class Sites:
    """The clients of a run, all of which have to be in every sum."""

    sum_only = True

    grid: Grid
    nodes: Sequence[int]
    wait: Callable[[float], None] = time.sleep
    _rows: dict[str, float] = field(default_factory=dict, init=False)

    def statistics(self, bounds: Bounds) -> Statistics:
        """Of the columns of all clients; raises AppError if some never answer."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.wait(_WAIT**attempt)
            statistics = federated_statistics(self.grid, bounds, bins=FINE_BINS, min_nodes=len(self.nodes))
            if statistics.clients == statistics.asked == len(self.nodes):
                return statistics
        raise AppError(
            f"the statistics of the columns are of {statistics.clients} of {len(self.nodes)} clients; boosted trees "
            "need the same rows in every sum. Bring the clients back, and start the run again",
            check="clients-differ",
        )

    def sums(self, action: str, content: RecordDict, group: str) -> tuple[NDArray[np.float64], float]:
        """Sums over all clients, and of how many rows; raises AppError if they never are over the same clients."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.wait(_WAIT**attempt)
            numbers, clients, rows, reason = self._ask(action, content, group)
            known = self._rows.setdefault(action, rows) if clients == len(self.nodes) else -1.0
            if numbers is not None and rows == known:
                return numbers, rows
        raise AppError(
            f"a sum is over {clients:g} clients and {rows:g} rows, and the run began with {len(self.nodes)} clients"
            + (f" and {self._rows[action]:g} rows" if action in self._rows else "")
            + "; the trees of a run need the same rows in every sum. Bring the clients back, and start the run again"
            f"{f' ({reason})' if reason else ''}",
            check="clients-differ",
        )

    def _ask(
        self, action: str, content: RecordDict, group: str
    ) -> tuple[NDArray[np.float64] | None, float, float, str]:
        messages = [Message(content, node, f"query.{action}", group_id=group) for node in self.nodes]
        replies = list(self.grid.send_and_receive(messages))
        reasons = [str(reply.error.reason) for reply in replies if reply.has_error()]
        contents = [reply.content for reply in replies if not reply.has_error()]
        counts = [one.metric_records[COUNTS] for one in contents]
        clients, rows = (float(sum(_number(one[key]) for one in counts)) for key in ("clients", "rows"))
        parts = [np.asarray(one.metric_records[SUMS]["sums"], np.float64) for one in contents]
        if len({part.shape for part in parts}) != 1:
            return None, clients, rows, next(iter(reasons), "")
        return np.sum(parts, axis=0), clients, rows, next(iter(reasons), "")


class TreesStrategy(FedAvg):
    """Flower's loop over trees: what FedAvg does with replies to a training, this does with queries.

    ensemble: the model so far.
    """

    mean_only = True
    sum_only = True

    def __init__(self, sites: Sites, ensemble: Ensemble, scale: Scale, test_every: int) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.sites, self.ensemble, self.scale, self.test_every = sites, ensemble, scale, test_every

    def summary(self) -> None:
        """Nothing: FedAvg's says what this does not do."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Grow a tree; no message is left to send."""
        del config, grid
        arrays = _record(self.ensemble)  # with room for more trees than a model that the run began with
        growth = None
        while growth is None or growth.questions:
            numbers = self._level(server_round, arrays, growth)
            root = numbers[:2] if growth is None else None
            if root is not None:
                growth = TreeGrowth(self.ensemble.settings, self.ensemble.cuts, self.scale, root)
                numbers = numbers[2:]
            assert growth is not None  # noqa: S101 - the first answer made it
            growth.answer(numbers.reshape(len(growth.questions), 2, self.ensemble.cuts.bins))
        self.ensemble.trees.append(growth.tree)
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model with the new tree."""
        del server_round, replies
        leaves = int((self.ensemble.trees[-1].feature == -1).sum())
        return _record(self.ensemble), MetricRecord({"leaves": leaves})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask for the loss on the sites' test rows, if it is time; no message is left to send."""
        self._figures: dict[str, float] = {}
        last = len(self.ensemble.trees) == self.ensemble.room
        if self.test_every and (last or server_round % self.test_every == 0):
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": server_round})})
            sums, rows = self.sites.sums(TEST, content, str(server_round))
            self._figures = figures_of(self.ensemble.settings.objective, sums.tolist(), rows)
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The figures that the queries gave."""
        del server_round, replies
        return MetricRecord(dict(self._figures)) if self._figures else None

    def _level(self, server_round: int, arrays: ArrayRecord, growth: TreeGrowth | None) -> NDArray[np.int64]:
        """All numbers of a level, by as many queries as they need."""
        questions = [0] if growth is None else growth.questions
        count = len(questions) * 2 * self.ensemble.cuts.bins + (2 if growth is None else 0)
        parts = []
        most = QUERY_VALUES - _COUNT_NUMBERS
        for start in range(0, count, most):
            values = {**self._splits(growth), "nodes": questions, "start": start, "stop": min(start + most, count)}
            config = ConfigRecord({PREFIX + key: value for key, value in values.items()})
            config["server-round"] = server_round
            content = RecordDict({"arrays": arrays, "config": config})
            parts.append(self.sites.sums(GROW, content, str(server_round))[0])
        numbers = np.concatenate(parts)
        if len(numbers) != count:
            raise AppError("the clients answered with another number of sums than they were asked for")
        return np.rint(numbers).astype(np.int64)

    def _splits(self, growth: TreeGrowth | None) -> dict[str, Any]:
        """What the sites have to know of the tree so far."""
        scale = {"gradient-bits": self.scale.gradient_bits, "hessian-bits": self.scale.hessian_bits}
        if growth is None:
            return {**scale, "inner": [], "features": [], "thresholds": [], "default-left": []}
        tree = growth.tree
        inner = np.flatnonzero(tree.feature >= 0)
        return {
            **scale,
            "inner": inner.tolist(),
            "features": tree.feature[inner].tolist(),
            "thresholds": tree.threshold[inner].tolist(),
            "default-left": tree.default_left[inner].astype(int).tolist(),
        }


def _started(
    config: UserConfig, names: tuple[str, ...], statistics: Statistics, rounds: int, earlier: ModelState | None
) -> Ensemble:
    """The model that the run begins with: bins and base score alone, or the trees that there are."""
    settings = boosting_settings(config)
    if lacking := [name for name in (*names, "y") if name not in statistics.columns]:
        raise AppError(f"there are no statistics of column {lacking[0]!r}: give it bounds", check="bounds-needed")
    bins = int(config.get("bins", 32))
    if not 2 <= bins <= MOST_BINS:
        raise ConfigurationError(f"bins is {bins}; use 2 to {MOST_BINS}", check="bins")
    columns = [statistics.columns[name] for name in names]
    if earlier is not None:
        model = Ensemble.from_arrays({name: np.asarray(earlier[name]) for name in earlier})
        if len(model.trees) >= rounds:
            raise ConfigurationError(
                f"the model that the run is to begin with has {len(model.trees)} trees already, and num-server-rounds, "
                f"which counts all of them, is {rounds}; set it higher",
                check="trees-grown",
            )
        model.room = rounds
        return model
    cuts = Cuts.at_quantiles([column.cells for column in columns], [column.edges for column in columns], bins)
    return Ensemble(settings, cuts, names, float(np.float32(statistics.mean["y"])), rounds)


def _scale(ensemble: Ensemble, statistics: Statistics) -> Scale:
    """The finest scale for which the sums of all rows have room, in all rounds.

    The gradients of the logistic loss are below 1. The sum of squared errors never grows, since a leaf of learning
    rate up to 1 moves its rows towards their mean, so by Cauchy-Schwarz neither does the bound on absolute errors.
    """
    target = statistics.columns["y"]
    rows = max(float(target.count), 1.0)
    if ensemble.settings.objective == LOGISTIC:
        return Scale.of(rows, rows)
    spread = target.variance + (target.mean - ensemble.base_score) ** 2
    largest = max(abs(target.low), abs(target.high))
    return Scale.of(rows * (1.01 * float(np.sqrt(spread)) + 1e-6 * largest), rows)


def _record(ensemble: Ensemble) -> ArrayRecord:
    return arrays_from_state(ModelState.from_arrays(ensemble.to_arrays()))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
