"""Local optimizers by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from fedcore.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Makes a local optimizer. `momentum` is for sgd; adam and adamw keep their usual betas (0.9, 0.999)."""

    name: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adam", "adamw"):
            raise ConfigurationError(f"unknown optimizer {self.name!r}: use sgd, adam or adamw")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigurationError(f"lr must be a positive number, not {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"momentum must be in [0, 1), not {self.momentum}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigurationError(f"weight decay cannot be {self.weight_decay}")

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer for the parameters of `model` that are trained, with fresh state."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        match self.name:
            case "adam":
                return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
            case "adamw":
                return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
