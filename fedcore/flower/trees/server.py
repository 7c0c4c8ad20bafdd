"""The ServerApp of boosted trees: asks for the sums of each level, and grows the trees.

A round of Flower's loop is one tree, or one for each class. All that it asks are queries of the same clients, so in
secure mode the server sees sums over all of them. A sum over other clients or other rows than the first is of no use,
since a child's histogram is the difference of two: the same clients are asked again, and in the end the run fails by
name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedcore.data.statistics import Bounds, Statistics
from fedcore.errors import AppError
from fedcore.flower.apps.statistics import federated_statistics, node_ids
from fedcore.flower.first_model.messages import QUERIES_ALONE
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.records import arrays_from_state
from fedcore.flower.trees.client import COUNTS, SUMS, TreesApp
from fedcore.flower.trees.first import scale_of, started
from fedcore.flower.trees.question import GROW, TEST, Question, TreeQuestion
from fedcore.flower.trees.schedule import BoostingSchedule
from fedcore.run.encoding_plan import QUERY_VALUES
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Ensemble, RegressionTree, Scale, TreeGrowth
from fedcore.trees.evaluation import figures_of
from fedcore.trees.limits import FINE_BINS
from fedcore.trees.sampling import drawn_features
from fedcore.trees.settings import SQUARED_ERROR
from fedcore.trees.tree import LEAF

EARLY_METRICS: Final = {SQUARED_ERROR: "rmse"}
"""What early stopping compares, if not `eval_loss`: as XGBoost does by default."""
_ATTEMPTS: Final = 4
_WAIT: Final = 2.0
_COUNT_NUMBERS: Final = 2


def trees_server(client: TreesApp) -> ServerApp:
    """A ServerApp that grows boosted trees over the sites of `client`, a tree in each round.

    It asks for histograms of the columns first, whose quantiles are the bins, and for the mean of the target. Of the
    run config it reads `num-server-rounds` (each with a tree, or with one for each class), `min-nodes`, `test-every`
    (rounds between two tests, 0 for none), `early-stopping-rounds` (without a lower loss, 0 for none; then the model
    has the trees up to the best round), `bins` (of a feature, 32 by default), and what `boosting_settings` reads. A run
    that begins with an earlier model of the app continues with its bins and settings, up to `num-server-rounds`.
    """
    app = ServerApp()
    setattr(app, QUERIES_ALONE, True)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        grow(grid, context.run_config, client)

    return app


def grow(
    grid: Grid,
    config: UserConfig,
    client: TreesApp,
    on_model: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
) -> ArrayRecord:
    """Grow the trees of a run over the sites of `grid`; gives the last model, or the best one with early stopping.

    Args:
        on_model: called with the number of each round and the model, before the first round and after each.
    """
    earlier = grid.initial if isinstance(grid, ExchangeGrid) else None
    schedule = BoostingSchedule.of(config)
    settings, names = boosting_settings(config), client.names(config)
    nodes = node_ids(grid, schedule.min_nodes)
    sites = Sites(grid, nodes)
    statistics = sites.statistics(client.bounds(config))
    ensemble = started(schedule, settings, names, client.categories, statistics, earlier)
    if not schedule.early_stopping:
        ensemble.best = None
    initial = _record(ensemble) if earlier is None else arrays_from_state(earlier)
    strategy = TreesStrategy(
        sites, ensemble, scale_of(ensemble, statistics), schedule.test_every, schedule.early_stopping
    )
    rounds = schedule.rounds - ensemble.rounds
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds, evaluate_fn=on_model)
    if schedule.early_stopping:
        result.arrays = _record(strategy.ensemble.at_best())
    return result.arrays


def boosting_settings(config: UserConfig) -> BoostingSettings:
    """From the run config, whose keys are the names of `BoostingSettings` with `-` for `_`.

    What is not there is as in XGBoost. Raises ConfigurationError.
    """
    keys = [one.name for one in fields(BoostingSettings)]
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

    def __init__(self, sites: Sites, ensemble: Ensemble, scale: Scale, test_every: int, early: int = 0) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.sites, self.ensemble, self.scale = sites, ensemble, scale
        self.test_every, self.early_stopping, self.stopped = test_every, early, False
        self._figures: dict[str, float] = {}

    def summary(self) -> None:
        """Nothing: FedAvg's says what this does not do."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Grow the trees of a round; no message is left to send."""
        del arrays, config, grid
        self._figures = {}
        arrays = _record(self.ensemble)  # with room for more trees than a model that the run began with
        if server_round == 1 and self.early_stopping and self.ensemble.trees:
            self._test(server_round, arrays)  # nobody may have noted the loss of a model that the run began with
        if self.stopped:  # Flower's loop has no other end than its last round
            return []
        settings, count = self.ensemble.settings, len(self.ensemble.trees)
        features = [
            drawn_features(settings, count + group, self.ensemble.cuts.features) for group in range(settings.groups)
        ]
        numbers = self._ask(server_round, arrays, dict.fromkeys(range(settings.groups)), features)
        growths = {}
        for group, own in enumerate(features):
            root, histograms = numbers[group][:2], numbers[group][2:]
            growth = growths[group] = TreeGrowth(settings, self.ensemble.cuts, self.scale, root, own)
            growth.answer(self._histograms(histograms, 1))
        while open_growths := {group: growth for group, growth in growths.items() if growth.questions}:
            numbers = self._ask(server_round, arrays, open_growths, features)
            for group, growth in open_growths.items():
                growth.answer(self._histograms(numbers[group], len(growth.questions)))
        self.ensemble.trees += [growths[group].tree for group in range(settings.groups)]
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model with the new trees."""
        del server_round, replies
        if self.stopped:
            return None, None
        last = self.ensemble.trees[-self.ensemble.settings.groups :]
        return _record(self.ensemble), MetricRecord({"leaves": sum(int((tree.feature == LEAF).sum()) for tree in last)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask for the loss on the sites' test rows, if it is time; no message is left to send."""
        del config, grid
        last = len(self.ensemble.trees) == self.ensemble.room
        if not self.stopped and self.test_every and (last or server_round % self.test_every == 0):
            self._test(server_round, arrays)
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The figures that the queries gave."""
        del server_round, replies
        return MetricRecord(dict(self._figures)) if self._figures else None

    def _test(self, server_round: int, arrays: ArrayRecord) -> None:
        """Ask for the loss; raises AppError if early stopping needs it, and there are no test rows."""
        objective = self.ensemble.settings.objective
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": server_round})})
        sums, rows = self.sites.sums(TEST, content, str(server_round))
        self._figures = figures_of(objective, sums.tolist(), rows)
        if not self.early_stopping:
            return
        if not self._figures:
            raise AppError(
                "no site has test rows, and early-stopping-rounds needs the loss on them; set it to 0, or let data "
                "give a test part",
                check="no-test-rows",
            )
        loss, best = self._figures[EARLY_METRICS.get(objective, "eval_loss")], self.ensemble.best
        if best is None or loss < best[1]:
            best = self.ensemble.best = self.ensemble.rounds - 1, loss
        self._figures["best_round"] = best[0] + 1  # the last figures of a run are not those of the model that it keeps
        self.stopped = self.ensemble.rounds - 1 - best[0] >= self.early_stopping

    def _ask(
        self,
        server_round: int,
        arrays: ArrayRecord,
        growths: Mapping[int, TreeGrowth | None],
        features: Sequence[NDArray[np.int64]],
    ) -> dict[int, NDArray[np.int64]]:
        """The numbers of a level of each of these trees, None for one without a root, by as many queries as needed."""
        empty = RegressionTree.empty(self.ensemble.settings.nodes, self.ensemble.cuts.most_levels)
        trees = {
            group: TreeQuestion(
                nodes=np.array([0] if growth is None else growth.questions, np.int64),
                features=features[group],
                tree=empty if growth is None else growth.tree,
            )
            for group, growth in growths.items()
        }
        sizes = [
            len(one.nodes) * 2 * len(self.ensemble.cuts.bins_in(one.features)) + 2 * (growths[group] is None)
            for group, one in trees.items()
        ]
        parts, most, count = [], QUERY_VALUES - _COUNT_NUMBERS, sum(sizes)
        for start in range(0, count, most):
            question = Question(trees=trees, scale=self.scale, start=start, stop=min(start + most, count))
            config = question.as_config(self.ensemble)
            config["server-round"] = server_round
            content = RecordDict({"arrays": arrays, "config": config})
            parts.append(self.sites.sums(GROW, content, str(server_round))[0])
        numbers = np.concatenate(parts)
        if len(numbers) != count:
            raise AppError("the clients answered with another number of sums than they were asked for")
        pieces = np.split(np.rint(numbers).astype(np.int64), np.cumsum(sizes)[:-1])
        return dict(zip(trees, pieces, strict=True))

    @staticmethod
    def _histograms(numbers: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
        return numbers.reshape(nodes, 2, -1)


def _record(ensemble: Ensemble) -> ArrayRecord:
    return arrays_from_state(ModelState.from_arrays(ensemble.to_arrays()))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
