"""The ServerApp of boosted trees: asks for the sums of each level, and grows the trees.

A round of Flower's loop is one tree, or one for each class. All that it asks are queries of the same clients, so in
secure mode the server sees sums over all of them. A sum over other clients or other rows than the first is of no use,
since a child's histogram is the difference of two: the same clients are asked again, and in the end the run fails by
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcore.errors import AppError
from fedcore.flower.apps.statistics import node_ids
from fedcore.flower.first_model.messages import QUERIES_ALONE
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.records import arrays_from_state
from fedcore.flower.trees.client import TreesApp
from fedcore.flower.trees.first import Columns, scale_of, started
from fedcore.flower.trees.levels import LevelQueries
from fedcore.flower.trees.noised import noised_start
from fedcore.flower.trees.question import TEST
from fedcore.flower.trees.schedule import BoostingSchedule
from fedcore.flower.trees.sites import Sites
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Ensemble, TreeGrowth
from fedcore.trees.evaluation import figures_of
from fedcore.trees.sampling import drawn_features
from fedcore.trees.settings import SQUARED_ERROR
from fedcore.trees.tree import LEAF

EARLY_METRICS: Final = {SQUARED_ERROR: "rmse"}
"""What early stopping compares, if not `eval_loss`: as XGBoost does by default."""


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
    sites = Sites(grid, node_ids(grid, schedule.min_nodes))
    columns = Columns(names=names, categories=client.categories, bounds=client.bounds(config))
    ensemble, levels = _begun(sites, schedule, settings, columns, earlier)
    if not schedule.early_stopping:
        ensemble.best = None
    initial = _record(ensemble) if earlier is None else arrays_from_state(earlier)
    strategy = TreesStrategy(levels, ensemble, schedule.test_every, schedule.early_stopping)
    rounds = schedule.rounds - ensemble.rounds
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds, evaluate_fn=on_model)
    if schedule.early_stopping:
        result.arrays = _record(strategy.ensemble.at_best())
    return result.arrays


def _begun(
    sites: Sites, schedule: BoostingSchedule, settings: BoostingSettings, columns: Columns, earlier: ModelState | None
) -> tuple[Ensemble, LevelQueries]:
    """The model that the run begins with, and what asks the sites for levels."""
    if schedule.noised:
        return noised_start(sites, schedule, settings, columns, earlier)
    statistics = sites.statistics(columns.bounds)
    ensemble = started(schedule, settings, columns, statistics, earlier)
    return ensemble, LevelQueries(sites=sites, scale=scale_of(ensemble, statistics))


def boosting_settings(config: UserConfig) -> BoostingSettings:
    """From the run config, whose keys are the names of `BoostingSettings` with `-` for `_`.

    What is not there is as in XGBoost. Raises ConfigurationError.
    """
    keys = [one.name for one in fields(BoostingSettings)]
    values: dict[str, Any] = {key: config[name] for key in keys if (name := key.replace("_", "-")) in config}
    return BoostingSettings(**values)


class TreesStrategy(FedAvg):
    """Flower's loop over trees: what FedAvg does with replies to a training, this does with queries.

    ensemble: the model so far.
    """

    mean_only = True
    sum_only = True

    def __init__(self, levels: LevelQueries, ensemble: Ensemble, test_every: int, early: int = 0) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.levels, self.ensemble = levels, ensemble
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
        ask = partial(self.levels.ask, self.ensemble, server_round, arrays, features=features)
        growths, noised = {}, self.levels.budget is not None
        for group, (root, histograms) in ask(dict.fromkeys(range(settings.groups))).items():
            growth = TreeGrowth(settings, self.ensemble.cuts, self.levels.scale, root, features[group], noised)
            growths[group] = growth
            growth.answer(histograms)
        while open_growths := {group: growth for group, growth in growths.items() if growth.questions}:
            for group, (_, histograms) in ask(open_growths).items():
                growths[group].answer(histograms)
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
        figures: dict[str, float] = {"leaves": sum(int((tree.feature == LEAF).sum()) for tree in last)}
        if self.levels.budget is not None:
            figures["epsilon"] = self.levels.budget.epsilon_spent
        return _record(self.ensemble), MetricRecord(dict(figures))

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
        sums, rows = self.levels.sites.sums(TEST, content, str(server_round))
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


def _record(ensemble: Ensemble) -> ArrayRecord:
    return arrays_from_state(ModelState.from_arrays(ensemble.to_arrays()))
