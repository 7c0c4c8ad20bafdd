"""The state of an optimizer as named tensors, so that it can travel with the model's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedcore.errors import ConfigurationError
from fedcore.training.engines.transfer import Entry

_SUPPORTED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
_NONNEGATIVE = frozenset({"step", "exp_avg_sq", "max_exp_avg_sq"})


def optimizer_entries(optimizer: torch.optim.Optimizer, parameters: Iterable[tuple[str, Tensor]]) -> list[Entry]:
    """The tensors that the optimizer keeps for each named parameter, as `optimizer.<what>.<parameter>`.

    An optimizer that has made no step yet gets state of zeros first, which means the same. What is kept: the momentum
    of SGD; the step (a float32 scalar) and the moments of Adam and AdamW. Raises ConfigurationError for others.
    """
    if not isinstance(optimizer, _SUPPORTED):
        kind = type(optimizer).__name__
        raise ConfigurationError(f"the state of {kind} cannot be averaged; use SGD, Adam or AdamW, or reset it")
    _begin(optimizer)
    return [
        Entry.of(f"optimizer.{what}.{name}", tensor, nonnegative=what in _NONNEGATIVE)
        for name, parameter in parameters
        for what, tensor in optimizer.state.get(parameter, {}).items()
        if isinstance(tensor, Tensor)
    ]


def parameter_of(name: str) -> str:
    """The parameter that an entry of the optimizer's state belongs to."""
    return name.split(".", 2)[2]


def _begin(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter without state the state from before the first step.

    Only the optimizer knows what it keeps, and it makes it in its first step. So it takes one of length zero, for
    these parameters alone.
    """
    every = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    new = [p for p in every if p not in optimizer.state]
    if not new:
        return
    optimizer.zero_grad()
    for parameter in new:
        parameter.grad = torch.zeros_like(parameter)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()
    for parameter in new:
        # Weight decay has left a trace, and the step was counted.
        for tensor in optimizer.state.get(parameter, {}).values():
            if isinstance(tensor, Tensor):
                tensor.zero_()
