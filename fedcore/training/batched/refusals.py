"""Reasons why several clients of a model cannot train in one batch, known before it is tried."""

from __future__ import annotations

import torch
from torch import nn

from fedcore.training.engines import Engine
from fedcore.training.engines.replicated import SingleEngine
from fedcore.training.rules import WeighingLayer

_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
)
"""Optimizers that change each element by its own gradients alone, with the same number of steps for all."""

_BATCH_STATISTICS = (nn.modules.batchnorm._BatchNorm,)  # noqa: SLF001 - torch's base class
_DROPOUT = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RReLU)  # noqa: SLF001 - torch's base class


def refusal_reason(engine: Engine) -> str | None:
    """Why clients of this engine cannot train at once, as the end of a sentence; None if nothing is known."""
    return _of_engine(engine) or _of_model(engine.module) or _of_loss(engine) or _of_optimizer(engine)


def _of_engine(engine: Engine) -> str | None:
    config = engine.config
    if type(engine) is not SingleEngine or engine.world.size != 1:
        return f"engine {config.engine} trains one model on all its ranks"
    for setting, needed in (
        ("checkpoint", config.checkpoint),
        ("compile", config.compile),
        ("micro-batches", config.micro_batches > 1),
        (f"precision = {config.precision}", config.precision != "fp32"),
    ):
        if needed:
            return f"the engine's setting {setting} is for one model at a time"
    return None


def _of_model(module: nn.Module) -> str | None:
    for name, part in module.named_modules():
        called = f"{type(part).__name__} ({name})" if name else type(part).__name__
        if isinstance(part, WeighingLayer) and part.weighs:
            return f"its model has {called}, which weighs examples"
        if isinstance(part, _BATCH_STATISTICS):
            return f"its model has {called}, whose examples depend on each other"
        if isinstance(part, nn.RNNBase):
            return f"its model has {called}, which torch.func.vmap has no rule for"
        if isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats:  # noqa: SLF001 - torch's base class
            return f"its model has {called}, which counts what it sees"
        if isinstance(part, _DROPOUT) and _chance(part):
            return f"its model has {called}, which draws numbers for each client"
    return None


def _chance(part: nn.Module) -> bool:
    """Whether a layer that may draw random numbers does."""
    return isinstance(part, nn.RReLU) or float(getattr(part, "p", getattr(part, "dropout", 0.0))) > 0


def _of_loss(engine: Engine) -> str | None:
    loss = engine.recipe.loss
    if loss.of == "model":
        return f"its loss {loss.name} is a function of the model and the batch"
    if loss.over == "target":
        return f"its loss {loss.name} weighs examples by their targets"
    return f"its loss {loss.name} is over a whole batch" if loss.over != "example" else None


def _of_optimizer(engine: Engine) -> str | None:
    optimizer = engine.recipe.optimizer(engine.module)
    if type(optimizer) not in _ELEMENTWISE:
        return f"its optimizer {type(optimizer).__name__} is not known to work element by element"
    trained = {id(parameter) for parameter in engine.parameters()}
    if any(id(parameter) not in trained for group in optimizer.param_groups for parameter in group["params"]):
        return "its optimizer has other tensors than the model's trained parameters"
    return None
