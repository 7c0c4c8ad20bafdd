"""The app that most federations begin with: minibatches of examples with labels, its settings in the run config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from flwr.app import UserConfig
from torch import nn

from fedcore.flower.engine_app import Definition, LocalApp, LocalJob, Metrics, OptimizerState, Work
from fedcore.flower.personalized import Personal
from fedcore.training.engines import Engine, MakeOptimizer
from fedcore.training.engines.loading import TrainingData
from fedcore.training.loop import evaluate, train
from fedcore.training.seeds import derive_seed

Parts: TypeAlias = tuple[TrainingData, TrainingData]
"""Training part and test part of one client."""


def supervised_app(
    *,
    model: Callable[[UserConfig], nn.Module],
    optimizer: Callable[[UserConfig], MakeOptimizer],
    data: Callable[[LocalJob], Parts],
    weigh: Literal["examples", "targets"] = "examples",
    personal: Callable[[UserConfig], Personal] = lambda config: Personal(),
    optimizer_state: OptimizerState = "reset",
    adapter: bool = False,
) -> SupervisedApp:
    """A `local_app` that trains by cross entropy and tests loss and accuracy.

    Of the run config it reads `batch-size` (0 for one full batch), `local-epochs`, `local-steps` where there are no
    epochs, and `seed`; of the node's, `partition-id`. Metrics: `train_loss`, `eval_loss`, `eval_acc`.
    data: asked in every round, so that it had better keep what it read. weigh: what a test result weighs in the
    federation's mean; "targets" for sequences, whose loss and accuracy are means over positions.
    """

    def fit(engine: Engine, job: LocalJob) -> Metrics:
        examples, _ = data(job)
        summary = train(
            engine,
            examples,
            batch_size=int(job.config["batch-size"]),
            epochs=int(job.config["local-epochs"]),
            steps=int(job.config.get("local-steps", 0)),
            seed=SupervisedApp.order_seed(job),
            proximal=job.proximal,
        )
        return {"num-examples": summary.examples, "train_loss": summary.loss}

    def check(engine: Engine, job: LocalJob) -> Metrics:
        _, examples = data(job)
        result = evaluate(engine, examples)
        return {"num-examples": getattr(result, weigh), "eval_loss": result.loss, "eval_acc": result.accuracy}

    definition = Definition(
        model=model, optimizer=optimizer, personal=personal, optimizer_state=optimizer_state, adapter=adapter
    )
    return SupervisedApp(definition, fit, check, data, weigh)


class SupervisedApp(LocalApp):
    """What `supervised_app` makes: its parts are known, so that others can train the same model on the same data.

    data, weigh: as given to `supervised_app`.
    """

    def __init__(
        self,
        definition: Definition,
        train: Work,
        evaluate: Work,
        data: Callable[[LocalJob], Parts],
        weigh: Literal["examples", "targets"],
    ) -> None:
        super().__init__(definition, train, evaluate)
        self.data, self.weigh = data, weigh

    @staticmethod
    def order_seed(job: LocalJob) -> int:
        """Decides the order of a node's examples: the same whenever, wherever and after whatever a round runs."""
        return derive_seed("training order", int(job.config["seed"]), job.server_round, int(job.node["partition-id"]))
