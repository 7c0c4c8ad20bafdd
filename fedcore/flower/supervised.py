"""The app that most federations begin with: minibatches of examples with labels, its settings in the run config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from flwr.app import UserConfig
from torch import nn

from fedcore.flower.local import LocalApp, LocalJob, Metrics, OptimizerState, local_app
from fedcore.flower.personalized import Personal
from fedcore.training.engines import Engine, MakeOptimizer
from fedcore.training.engines.loading import TrainingData
from fedcore.training.local import evaluate, train
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
) -> LocalApp:
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
            seed=_order_seed(job),
            proximal=job.proximal,
        )
        return {"num-examples": summary.examples, "train_loss": summary.loss}

    def check(engine: Engine, job: LocalJob) -> Metrics:
        _, examples = data(job)
        result = evaluate(engine, examples)
        return {"num-examples": getattr(result, weigh), "eval_loss": result.loss, "eval_acc": result.accuracy}

    return local_app(
        model=model,
        optimizer=optimizer,
        train=fit,
        evaluate=check,
        personal=personal,
        optimizer_state=optimizer_state,
        adapter=adapter,
    )


def _order_seed(job: LocalJob) -> int:
    """The order of the examples: the same whenever, wherever and after whatever a round runs."""
    return derive_seed("training order", int(job.config["seed"]), job.server_round, int(job.node["partition-id"]))
