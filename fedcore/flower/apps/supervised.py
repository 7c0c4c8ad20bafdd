"""A `local_app` for what most federations begin with: minibatches of examples with labels, set by the run config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from flwr.app import UserConfig
from torch import nn

from fedcore.flower.apps.engine_app import (
    EXAMPLES,
    Data,
    Definition,
    LocalApp,
    Metrics,
    OptimizerState,
    Work,
    with_validation,
)
from fedcore.flower.apps.personalization import Personal
from fedcore.flower.apps.statistics import UNNAMED, TrainingColumns
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.flower.node.config import number_of_node
from fedcore.training.engines import Engine, MakeOptimizer
from fedcore.training.loop import TrainingPlan, TrainSummary, default_metrics, evaluate
from fedcore.training.losses import Loss, LossFunction, as_loss, cross_entropy
from fedcore.training.metrics import Metric, checked_metrics
from fedcore.training.optimizers import Rates
from fedcore.training.seeds import derive_seed

CLIP_KEY: Final = "max-grad-norm"


def supervised_app(
    *,
    model: Callable[[UserConfig], nn.Module | Mapping[str, nn.Module]],
    optimizer: Callable[[UserConfig], MakeOptimizer],
    data: Data,
    loss: Loss | LossFunction | None = None,
    metrics: Sequence[Metric] | None = None,
    columns: TrainingColumns = UNNAMED,
    weigh: Literal["examples", "targets"] = "examples",
    personal: Callable[[UserConfig], Personal] = lambda config: Personal(),
    optimizer_state: OptimizerState = "reset",
    adapter: bool = False,
) -> SupervisedApp:
    """A `local_app` that trains on minibatches, and tests loss and metrics.

    Of the run config it reads `batch-size` (0 for one full batch), `local-epochs`, `local-steps` if there are no
    epochs, `seed`, and if they are there `max-grad-norm`, `workers`, `lr-over-steps`, `lr-over-rounds`, `warmup-steps`,
    `warmup-rounds` and `sync-batch-norm` (docs/training.md); of the node's, nothing. It reports `train_loss`,
    `eval_loss`, and of each metric what `Evaluation.reported` says.

    Args:
        loss, metrics: of fedcore.training.losses and fedcore.training.metrics, or own ones; a loss may be a function of
            (model, batch). With neither, targets that are whole numbers are classes, for cross entropy and accuracy,
            and others are refused.
        data: called in every round, so it should keep what it has read.
        columns: as for `local_app`.
        weigh: what a test result weighs in the federation's mean; "targets" for sequences, whose loss and accuracy are
            means over positions.
    """
    data = with_validation(data)

    def fit(engine: Engine, job: LocalJob) -> Metrics:
        return SupervisedApp.reported(SupervisedApp.plan_by(data, job).run(engine, rule=job.rule))

    def check(engine: Engine, job: LocalJob) -> Metrics:
        _, examples = data(job)
        result = evaluate(engine, examples, metrics=chosen, workers=int(job.config.get("workers", 0)))
        weight: int = getattr(result, weigh)
        return {EXAMPLES: weight, **result.reported(weight)}

    definition = Definition(
        model=model,
        optimizer=optimizer,
        loss=cross_entropy if loss is None else as_loss(loss),
        personal=personal,
        optimizer_state=optimizer_state,
        adapter=adapter,
    )
    chosen = default_metrics(definition.loss) if metrics is None else checked_metrics(metrics)
    return SupervisedApp(definition, fit, check, data=data, metrics=chosen, columns=columns, weigh=weigh)


class SupervisedApp(LocalApp):
    """What `supervised_app` makes: its parts are known, so that others can train the same model on the same data.

    data, metrics, columns, weigh: as given to `supervised_app`.
    """

    data: Data

    def __init__(
        self,
        definition: Definition,
        train: Work,
        evaluate: Work,
        *,
        data: Data,
        metrics: Sequence[Metric],
        weigh: Literal["examples", "targets"],
        columns: TrainingColumns = UNNAMED,
    ) -> None:
        super().__init__(definition, train, evaluate, data=data, metrics=metrics, columns=columns)
        self.weigh = weigh

    def plan(self, job: LocalJob) -> TrainingPlan:
        """The training that a job asks for, all but its pull (`proximal_mu`)."""
        return self.plan_by(self.data, job)

    @staticmethod
    def plan_by(data: Data, job: LocalJob) -> TrainingPlan:
        """The training of a node whose examples `data` reads."""
        examples, _ = data(job)
        return TrainingPlan(
            data=examples,
            batch_size=int(job.config["batch-size"]),
            epochs=int(job.config["local-epochs"]),
            steps=int(job.config.get("local-steps", 0)),
            seed=SupervisedApp.order_seed(job),
            clip_norm=float(job.config.get(CLIP_KEY, 0.0)),
            workers=int(job.config.get("workers", 0)),
            rates=Rates.of(job.config, job.server_round),
        )

    @staticmethod
    def reported(summary: TrainSummary) -> Metrics:
        """What is reported of a training."""
        return {EXAMPLES: summary.examples, "train_loss": summary.loss}

    @staticmethod
    def order_seed(job: LocalJob) -> int:
        """Decides the order of a node's examples: the same whenever, wherever and after whatever a round runs."""
        number = number_of_node(job.node, job.client)
        return derive_seed("training order", int(job.config["seed"]), job.server_round, number)
