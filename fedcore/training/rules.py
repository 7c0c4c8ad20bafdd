"""Rules by which a federated algorithm changes a client's gradients, and layers by which examples weigh differently.

A `LocalRule` changes gradients between backward pass and optimizer.

A rule sees lists of tensors in the order of `Engine.parameters`, on a sharding engine this rank's shards, and works
on each element by itself. So it needs no communication, and one over stacked tensors of several clients is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedcore.training.proximal import add_proximal_gradient


class LocalRule(ABC):
    """Changes the gradients of every local step."""

    @abstractmethod
    def correct(self, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Change the gradients of `parameters` in place; the optimizer, which steps next, is only looked at.

        Called once a step, before clipping.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Proximal(LocalRule):
    """A pull towards `anchor` (`Engine.snapshot`): the step also descends mu / 2 times the squared distance from it."""

    mu: float
    anchor: list[Tensor]

    def correct(self, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Add mu (w - anchor)."""
        add_proximal_gradient(parameters, self.anchor, self.mu)


class WeighingLayer(nn.Module, ABC):
    """A layer of a model that says how much each example of a batch counts in training; an engine multiplies by it."""

    @property
    @abstractmethod
    def weighs(self) -> bool:
        """Whether some count more than others."""

    @abstractmethod
    def example_weights(self, targets: Tensor) -> Tensor | None:
        """Float32 [n] for targets [n], or None if all count alike."""


def weighing_layer(module: nn.Module) -> WeighingLayer | None:
    """The layer of a model that weighs examples, if it has one."""
    return next((layer for layer in module.modules() if isinstance(layer, WeighingLayer)), None)
