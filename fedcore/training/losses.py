"""Losses and features."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def per_example_cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each example [n]."""
    if output.dim() == 2 and output.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(
            output.squeeze(1), targets.to(output.dtype), reduction="none"
        )
    if output.dim() == 3:
        losses = functional.cross_entropy(output.transpose(1, 2), targets, reduction="none")
        return losses.sum(dim=1) / (targets >= 0).sum(dim=1).clamp(min=1)
    return functional.cross_entropy(output, targets, reduction="none")


def as_features(x: Tensor) -> Tensor:
    """Grey levels (uint8, 0 to 255) become float32 in [0, 1]; other features stay as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x
