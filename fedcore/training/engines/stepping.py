"""What a step does for optimizers, gradients and losses that are not of the usual kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.training.dtensors import local
from fedcore.training.engines.batches import Batch
from fedcore.training.losses import Loss
from fedcore.training.rules import LocalRule

if TYPE_CHECKING:
    from fedcore.training.engines.base import Engine


def one_optimizer(made: Any) -> torch.optim.Optimizer:
    """What an app's `optimizer` made, if it is an optimizer; raises ConfigurationError."""
    if isinstance(made, torch.optim.Optimizer):
        return made
    raise ConfigurationError(
        f"the app's optimizer gives a {type(made).__name__}, and an engine steps with one torch.optim.Optimizer; "
        "several are for a loop of your own, after engine.prepare(model, optimizer, other_optimizer)",
        check="not-an-optimizer",
    )


def check_sync_batch_norm(requested: bool, config: EngineConfig) -> None:
    """Raise ConfigurationError for an engine whose ranks cannot normalise over the whole batch together."""
    if requested and config.engine not in ("single", "ddp", "tp"):
        raise ConfigurationError(
            f"sync-batch-norm is for engines ddp, single and tp, not {config.engine}: use one of them, or group "
            "normalisation",
            check="sync-batch-norm",
        )


def step_by_closure(engine: Engine, batch: Batch, *, clip_norm: float, rule: LocalRule | None) -> Tensor:
    """A step of an optimizer that computes the loss several times (LBFGS); returns what `Engine.step` does.

    Raises ConfigurationError for an engine that has the model in parts, and for a rule: the optimizer goes by the loss,
    which a rule does not change.
    """
    name = type(engine.optimizer).__name__
    if not engine.replicates:
        raise ConfigurationError(
            f"{name} looks at all parameters together, and engine {engine.config.engine} has them in parts: use engine "
            "single or ddp, or another optimizer",
            check="closure-engine",
        )
    if rule is not None:
        raise ConfigurationError(
            f"{name} goes by the loss, and the strategy changes the gradient alone: use another optimizer, or a "
            "strategy that leaves the local steps as they are (fedavg)",
            check="closure-rule",
        )
    losses: list[Tensor] = []
    counted = engine.examples_trained

    def closure() -> Tensor:
        engine.optimizer.zero_grad()
        losses.append(engine.backward(batch))
        if clip_norm:
            engine.clip(clip_norm)
        return engine.total(losses[-1].clone()) / batch.total

    engine.optimizer.step(closure)  # type: ignore[arg-type]
    engine.examples_trained = counted + batch.total
    return losses[0]


def values_of(parameter: nn.Parameter) -> Tensor:
    """The gradient's elements that this rank holds, sharing their memory; of a sparse one those that are there."""
    assert parameter.grad is not None  # noqa: S101 - the caller looked
    if parameter.grad.is_sparse:
        parameter.grad = parameter.grad.coalesce()
        return parameter.grad._values()  # noqa: SLF001 - torch's: `values` gives a copy to a gradient
    return local(parameter.grad)


def sum_of_model(loss: Loss, model: nn.Module, batch: Batch, weight: float, *, divided: bool) -> Tensor:
    """The sum [] over a batch's examples of a loss of (model, batch).

    Args:
        weight: in examples, of each of those that the loss is the mean over.
        divided: whether this may be a part of a batch.
    """
    value = loss.checked(loss.compute(model, batch.whole), len(batch), divided=divided and loss.over == "example")
    if value.dim():
        return (value if batch.weights is None else value * batch.weights).sum()
    if batch.weights is not None and not bool(batch.weights.any()):
        return value * 0.0
    if loss.counts is None:
        return value * float(len(batch))
    return value * (loss.counts(model, batch.whole).detach().to(value.dtype) * weight)
