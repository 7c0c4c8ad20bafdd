"""Personalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def add_proximal_gradient(parameters: Sequence[Tensor], anchor: Sequence[Tensor], mu: float) -> None:
    """Add mu * (w - w0) to each gradient."""
    for parameter, start in zip(parameters, anchor, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start, alpha=mu)
