"""Local optimizers by name, and their learning rates over the steps of a round and over the rounds of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import torch
from torch import nn

from fedcore.errors import ConfigurationError

SHAPES: Final = ("constant", "linear", "cosine")
_OVER_STEPS, _OVER_ROUNDS, _WARMUP_STEPS, _WARMUP_ROUNDS = (
    "lr-over-steps",
    "lr-over-rounds",
    "warmup-steps",
    "warmup-rounds",
)
_ROUNDS: Final = "num-server-rounds"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """A factor that begins with 1, after a warm-up, and ends at 0.

    shape: "constant" for 1 all the time; "linear"; or "cosine" (Loshchilov and Hutter 2017, SGDR, equation 5).
    warmup: how many steps, or rounds, it rises evenly before that.
    """

    shape: str = "constant"
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.shape not in SHAPES or self.warmup < 0:
            raise ConfigurationError(
                f"a learning rate's schedule is {', '.join(SHAPES)}, with a warm-up that is not negative, not "
                f"{self.shape!r} with {self.warmup}",
                check="rate-schedule",
            )

    def factor(self, done: int, total: int) -> float:
        """After `done` of `total`: (done + 1) / warmup first, then by the shape of what is left."""
        if done < self.warmup:
            return (done + 1) / self.warmup
        progress = (done - self.warmup) / max(total - self.warmup, 1)
        match self.shape:
            case "linear":
                return max(0.0, 1.0 - progress)
            case "cosine":
                return (1.0 + math.cos(math.pi * min(progress, 1.0))) / 2
        return 1.0


@dataclass(slots=True, kw_only=True)
class Rates:
    """What the learning rates of one round are multiplied by, step by step.

    round_factor: in the whole round.
    steps: over its steps.
    """

    round_factor: float = 1.0
    steps: Decay = field(default_factory=Decay)
    _groups: list[tuple[dict[str, Any], float]] = field(default_factory=list)
    _total: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any], server_round: int) -> Self | None:
        """As the run config has it, None for constant rates; raises ConfigurationError for what means nothing.

        Args:
            server_round: from 1 on.
        """
        steps = Decay(shape=str(config.get(_OVER_STEPS, "constant")), warmup=int(config.get(_WARMUP_STEPS, 0)))
        rounds = Decay(shape=str(config.get(_OVER_ROUNDS, "constant")), warmup=int(config.get(_WARMUP_ROUNDS, 0)))
        if steps == rounds == Decay():
            return None
        if rounds != Decay() and _ROUNDS not in config:
            raise ConfigurationError(
                f"{_OVER_ROUNDS} goes over all rounds of the run, and the run config does not say how many there are: "
                f"set {_ROUNDS}",
                check="rate-schedule",
            )
        factor = 1.0
        if rounds != Decay():
            factor = rounds.factor(max(server_round - 1, 0), int(config[_ROUNDS]))
        return cls(round_factor=factor, steps=steps)

    def over(self, optimizer: torch.optim.Optimizer, total: int) -> Self:
        """For one training of `total` steps."""
        rates = type(self)(round_factor=self.round_factor, steps=self.steps)
        rates._groups = [(group, float(group["lr"])) for group in optimizer.param_groups]  # noqa: SLF001
        rates._total = total  # noqa: SLF001
        return rates

    def set(self, done: int) -> None:
        """Before the step that comes after `done` of them."""
        factor = self.round_factor * self.steps.factor(done, self._total)
        for group, rate in self._groups:
            group["lr"] = rate * factor

    def reset(self) -> None:
        """After the last step: the optimizer's own rates."""
        for group, rate in self._groups:
            group["lr"] = rate
