"""Outputs of a trained model for new examples, a batch at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BATCH = 256


def outputs(module: nn.Module, x: Tensor, *, batch_size: int = _BATCH) -> Tensor:
    """The outputs [n, ...] of `module` for the inputs x [n, ...], in their order, without gradients.

    The module is called as it is: `fedcore predict` gives it in eval mode. n is at least 1.
    """
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(x, batch_size)])
