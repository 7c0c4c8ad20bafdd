"""The ClientApp: honest, or one of three poisoners.

- *labels*: it trains on labels turned round, y -> 9 - y (data poisoning; Tolpegin et al. 2020, arXiv 2007.08432);
- *signs*: it sends its honest update times -strength (a scaled sign flip; Li et al. 2019, arXiv 1811.03761, RSA);
- *replace*: it trains on labels turned round, and scales that update so that the mean becomes its own model (model
  replacement; Bagdasaryan et al. 2020, arXiv 1807.00459): by n clients over the number of poisoners.

With `norm-bound` every client shrinks its update to that L2 norm (Sun et al. 2019, arXiv 1911.07963), and a poisoner to
`norm-slack` times that: the largest that a proof of the norm would let pass.
"""

import dataclasses
import math

import torch

from fedcore import LocalJob, local_app
from fedcore.data import Split
from fedcore.flower.apps.engine_app import Metrics
from fedcore.training import Engine, derive_seed, evaluate, train
from fedcore.training.metrics import accuracy

from .task import initial_model, is_poisoned, local_data, optimizer

CLASSES = 10
MOST_LOSS = 1e6
"""A ruined model's loss is said to be no larger, so that its sum still has room; nothing is judged by it."""


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of this node."""
    node = job.node
    return local_data(
        str(job.config["partition"]),
        int(node["partition-id"]),
        int(node["num-partitions"]),
        int(job.config["seed"]),
    )


def fit(engine: Engine, job: LocalJob) -> Metrics:
    """One round of training, after or before which a poisoned client does what the run config says."""
    config, node = job.config, int(job.node["partition-id"])
    poisoned = is_poisoned(node, int(job.node["num-partitions"]), config)
    kind = str(config["poison"]) if poisoned else "none"
    examples, _ = data(job)
    if kind in ("labels", "replace"):
        examples = dataclasses.replace(examples, y=CLASSES - 1 - examples.y)
    before = engine.snapshot()
    summary = train(
        engine,
        examples,
        batch_size=int(config["batch-size"]),
        epochs=int(config["local-epochs"]),
        seed=derive_seed("training order", int(config["seed"]), job.server_round, node),
        rule=job.rule,
    )
    if kind in ("signs", "replace"):
        factor = float(config["strength"]) * (-1 if kind == "signs" else 1)
        _multiply_update(engine, before, factor)
    if bound := float(config["norm-bound"]):
        _shrink_update(engine, before, bound * (1.0 if kind == "none" else float(config["norm-slack"])))
    return {"num-examples": summary.examples, "train_loss": _bounded(summary.loss)}


@torch.no_grad()
def _shrink_update(engine: Engine, before: list[torch.Tensor], bound: float) -> None:
    changes = zip(engine.parameters(), before, strict=True)
    norm = math.sqrt(sum(float((now - start).double().square().sum()) for now, start in changes))
    _multiply_update(engine, before, min(1.0, bound / norm) if norm else 1.0)


@torch.no_grad()
def _multiply_update(engine: Engine, before: list[torch.Tensor], factor: float) -> None:
    for now, start in zip(engine.parameters(), before, strict=True):
        now.copy_(start + factor * (now - start))


def check(engine: Engine, job: LocalJob) -> Metrics:
    """Test on this node's part, as every honest one does."""
    _, examples = data(job)
    result = evaluate(engine, examples)
    reported = {
        name: [_bounded(one) for one in value] if isinstance(value, list) else _bounded(value)
        for name, value in result.reported(result.examples).items()
    }
    return {"num-examples": result.examples, **reported}


def _bounded(value: float) -> float:
    return value if value < MOST_LOSS else MOST_LOSS  # not a number is not smaller


app = local_app(model=initial_model, optimizer=optimizer, train=fit, evaluate=check, data=data, metrics=[accuracy])
