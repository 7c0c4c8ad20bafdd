"""What the modes of a comparison have in common: model, optimizer, data and order, taken from the Flower app itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset

from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.schedule import Schedule
from fedcore.data.types import Split
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.engine_app import SYNC_KEY, Data, LocalApp
from fedcore.flower.apps.personalization import with_strategy
from fedcore.flower.apps.supervised import CLIP_KEY, SupervisedApp
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.flower.loading import load_object
from fedcore.flower.node.config import share_of_client
from fedcore.flower.node.keys import NodeKeys
from fedcore.flower.trees.client import TreesApp
from fedcore.flower.trees.server import boosting_settings
from fedcore.run.engine_config import EngineConfig
from fedcore.run.settings import ROUNDS_KEY
from fedcore.state import ModelState
from fedcore.training import losses, metrics
from fedcore.training.engines import Engine, MakeOptimizer, Recipe, World, make_engine
from fedcore.training.engines.batches import TrainingData
from fedcore.training.engines.streams import rows_to_pick
from fedcore.training.losses import Loss
from fedcore.training.metrics import Metric
from fedcore.training.models.columns import set_statistics
from fedcore.training.models.trees import TreesModule
from fedcore.training.optimizers import OptimizerConfig, Rates
from fedcore.trees.settings import LOGISTIC, SQUARED_ERROR, BoostingSettings
from fedcore.wire.base import Scalar

_ANY = "(centralized and the federated modes take any Flower app)"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One training problem, divided over sites.

    app: what `supervised_app` made, or `local_app` with data.
    data: of the app.
    config: the whole run config.
    sites: how many parts the data are divided into; site i of the comparison is partition i of the app, and the client
        that provisioning calls client-(i+1).
    node_keys: what the app asks for of its node.
    """

    app: LocalApp
    data: Data
    config: Mapping[str, Scalar]
    sites: int
    node_keys: NodeKeys = field(default_factory=dict)

    @classmethod
    def load(cls, app: FlowerApp, *, config: Mapping[str, Scalar], sites: int) -> Problem:
        """Import the app's ClientApp; the user's code runs from here on.

        Raises ConfigurationError if the app does its own training, or keeps a part of the model on its clients.
        """
        try:
            client = load_object(app.folder, app.clientapp, object)
            if isinstance(client, TreesApp):
                data = cast(Data, client.data)
                return TreesProblem(app=client, data=data, config=config, sites=sites, node_keys=app.node_keys)
            local_app = load_object(app.folder, app.clientapp, LocalApp)
        except AppError as error:
            raise ConfigurationError(
                f"{error}; this mode trains the app's model itself and needs a ClientApp made by supervised_app, or by "
                f"local_app(..., data=...), of fedcore.flower.apps.engine_app {_ANY}"
            ) from None
        if local_app.data is None:
            raise ConfigurationError(
                "this mode trains the app's model itself, and its local_app does not say on which data: write "
                f"local_app(..., data=lambda job: (training part, test part), loss=..., metrics=[...]) {_ANY}"
            )
        for key in (ROUNDS_KEY, "batch-size", "local-epochs", "seed"):
            if key not in config:
                raise ConfigurationError(f"the app's run config has no {key!r}, which this mode needs")
        personal = with_strategy(local_app.definition.personal(dict(config)), dict(config))
        if personal.parts or personal.whole:
            raise ConfigurationError("this app keeps models on its clients; only federated modes can do that")
        return cls(app=local_app, data=local_app.data, config=config, sites=sites, node_keys=app.node_keys)

    @classmethod
    def of(cls, run: PlannedRun) -> Problem:
        """That of one run; raises what `load` raises."""
        problem = cls.load(run.app, config=run.config, sites=run.sites)
        if not run.mode.follows_rates and problem.rates(1) is not None:
            raise ConfigurationError(
                "this mode trains with one learning rate, and the app's run config changes it from step to step or "
                "round to round (lr-over-steps, lr-over-rounds, warmup-steps, warmup-rounds); leave these out",
                check="rate-schedule",
            )
        return problem

    @property
    def weigh(self) -> str:
        """What the loss of a site's test part weighs, an attribute of `Evaluation`."""
        return self.app.weigh if isinstance(self.app, SupervisedApp) else "examples"

    @property
    def clip_norm(self) -> float:
        """Bound on the gradient of each step, 0 for none."""
        return float(self.config.get(CLIP_KEY, 0.0))

    def rates(self, number: int) -> Rates | None:
        """How a round's learning rates change, None if they do not."""
        return Rates.of(self.config, number)

    @property
    def rounds(self) -> int:
        """Rounds of the run; a mode without rounds reports after as many examples as a round has."""
        return int(self.config[ROUNDS_KEY])

    @property
    def loss(self) -> Loss:
        """What models are trained and tested by."""
        return self.app.loss

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What models are judged by, in addition to the loss."""
        return tuple(self.app.metrics)

    def engine_with(self, model: ModelState, last: Engine | None = None) -> Engine:
        """An engine that tests this model.

        Args:
            last: the one of another model, which may serve again.
        """
        engine = last or make_engine(self.recipe(), EngineConfig(), World(device=World.current().device))
        engine.load(model, only=list(model))
        return engine

    def recipe(self, wrap: Callable[[MakeOptimizer], MakeOptimizer] = lambda make: make) -> Recipe:
        """For an engine.

        Args:
            wrap: what makes the optimizer out of the app's own.
        """
        definition, config = self.app.definition, dict(self.config)
        return Recipe(
            build=self._model,
            optimizer=wrap(definition.optimizer(config)),
            loss=definition.loss,
            keep_weights=definition.keeps_weights(config),
            sync_batch_norm=bool(config.get(SYNC_KEY, False)),
        )

    def _model(self) -> nn.Module:
        """A new model, whose layers for columns know the sites' statistics."""
        model = self.app.definition.build(dict(self.config))
        set_statistics(model, self._statistics)
        return model

    def job(self, site: int, server_round: int = 1) -> LocalJob:
        """The task of one site, as the app's data function sees it."""
        return LocalJob(
            config=dict(self.config),
            node=share_of_client(site + 1, self.sites, self.node_keys),
            message={"server-round": server_round, **self._statistics},
            client=site + 1,
        )

    @cached_property
    def _statistics(self) -> dict[str, Any]:
        """The statistics that the clients of a federation of these sites would be told before they train."""
        config = dict(self.config)
        jobs = [
            LocalJob(
                config=config,
                node=share_of_client(site + 1, self.sites, self.node_keys),
                message={},
                client=site + 1,
            )
            for site in range(self.sites)
        ]
        return self.app.columns.pooled(config, self.app.data, jobs)

    def training(self, site: int) -> TrainingData:
        """The training part of one site."""
        return self.data(self.job(site))[0]

    def test(self, site: int) -> TrainingData:
        """The test part of one site."""
        return self.data(self.job(site))[1]

    def pooled_training(self) -> TrainingData:
        """All training parts, one site after the other."""
        return joined([self.training(site) for site in range(self.sites)])

    def order_seed(self, site: int, server_round: int) -> int:
        """Decides the order of a site's examples in a round, as in its federated training."""
        return SupervisedApp.order_seed(self.job(site, server_round))

    @cached_property
    def schedule(self) -> Schedule:
        """Reads the training part of every site."""
        return Schedule.of(self.config, [rows_to_pick(self.training(site)) for site in range(self.sites)])


def joined(parts: list[TrainingData]) -> TrainingData:
    """Several sites' examples as one data set, in their order."""
    arrays = [part for part in parts if isinstance(part, Split)]
    if len(arrays) == len(parts):
        return Split(x=np.concatenate([part.x for part in arrays]), y=np.concatenate([part.y for part in arrays]))
    return ConcatDataset(parts)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class TreesProblem(Problem):
    """Trees that grow over the rows of all sites: no mode trains them by steps."""

    app: TreesApp  # type: ignore[assignment]

    @property
    def settings(self) -> BoostingSettings:
        """What decides how the trees grow."""
        return boosting_settings(dict(self.config))

    @property
    def objective(self) -> str:
        return self.settings.objective

    @property
    def loss(self) -> Loss:
        by_objective = {LOGISTIC: losses.binary_cross_entropy, SQUARED_ERROR: losses.squared_error}
        return by_objective.get(self.objective, losses.cross_entropy)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """As apps of tables have them that train another model, so that their reports can be laid over one another."""
        if self.objective == SQUARED_ERROR:
            return metrics.rmse, metrics.mae, metrics.r2
        if self.objective == LOGISTIC:
            return (
                metrics.auc(), metrics.brier, metrics.calibration_error(), metrics.accuracy, metrics.majority()
            )  # fmt: skip
        classes = int(self.config["num-class"])
        return metrics.f1(classes), metrics.accuracy, metrics.majority(classes)

    @property
    def weigh(self) -> str:
        return "examples"

    @property
    def schedule(self) -> Schedule:
        raise ConfigurationError("trees grow without steps", check="no-steps")

    @property
    def _statistics(self) -> dict[str, Any]:
        """Nobody is told any: the server alone asks for them."""
        return {}

    def engine_with(self, model: ModelState, last: Engine | None = None) -> Engine:
        """Trees have no tensors of one shape, so each model is a module of its own."""
        del last
        recipe = Recipe(build=lambda: TreesModule.of(model), optimizer=OptimizerConfig(), loss=self.loss)
        return make_engine(recipe, EngineConfig(), World(device=torch.device("cpu")))

    def table(self, sites: range) -> tuple[Split, Split]:
        """Training and test parts of these sites, one site after the other; raises AppError for what is no table."""
        halves = [joined([read(site) for site in sites]) for read in (self.training, self.test)]
        if not all(isinstance(half, Split) for half in halves):
            raise AppError("the rows of boosted trees are a Split of features [n, d] and targets [n]", check="no-table")
        return cast(Split, halves[0]), cast(Split, halves[1])
