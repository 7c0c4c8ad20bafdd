"""Personalization."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor


def split_names(names: Sequence[str], patterns: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that match, and the others."""
    own = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return own, [name for name in names if name not in own]


@torch.no_grad()
def add_proximal_gradient(parameters: Sequence[Tensor], anchor: Sequence[Tensor], mu: float) -> None:
    """Add mu * (w - w0) to each gradient."""
    for parameter, start in zip(parameters, anchor, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start, alpha=mu)
