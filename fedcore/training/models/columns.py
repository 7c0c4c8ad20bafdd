"""Layers that know the federation's statistics, so that a model reads and answers in the units of its table.

The numbers are buffers: they are in the first model that the server sends, no client changes them, and anybody who has
the model's file can predict with it and needs nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedcore.data.statistics import PREFIX
from fedcore.errors import UsageError


class _Columns(nn.Module):
    """Mean and standard deviation of some columns, float32 [d]; nan until `know` has set them."""

    mean: Tensor
    std: Tensor

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        for buffer in ("mean", "std"):
            self.register_buffer(buffer, torch.full((len(self.names),), math.nan))

    def know(self, statistics: Mapping[str, Any]) -> None:
        """Take over what `Statistics.as_config` gave; a column that was not asked for stays as it comes."""
        names = statistics[f"{PREFIX}columns"]
        for buffer, key, default in ((self.mean, "mean", 0.0), (self.std, "std", 1.0)):
            known = dict(zip(names, statistics[PREFIX + key], strict=True))
            buffer.copy_(torch.tensor([known.get(name, default) for name in self.names]))

    def _check(self) -> None:
        # Not in eval mode: an exported model has no such branch, and there a nan shows in every output.
        if self.training and bool(torch.isnan(self.mean).any()):
            raise UsageError(
                f"{type(self).__name__} has no statistics yet: averaging_server asks for them before the first round, "
                "if the app names its columns and their bounds (TrainingColumns)",
                check="no-statistics",
            )


class Standardise(_Columns):
    """Features [n, d], nan if missing, less the federation's means and over its deviations; float32 [n, d].

    A missing value becomes 0, which is the mean, and so does a column that is the same everywhere. names: of the d
    columns; those that nobody asked statistics of pass as they are. Raises UsageError in training without statistics.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x, standardised."""
        self._check()
        scaled = (x - self.mean) / self.std
        return torch.where(torch.isnan(x) | (self.std == 0), 0.0, scaled)


class Rescale(_Columns):
    """The way back: outputs [n, d] of mean 0 and deviation 1 in the units of the target columns; float32 [n, d]."""

    def forward(self, output: Tensor) -> Tensor:
        """The output, in the columns' units."""
        self._check()
        scaled: Tensor = output * self.std + self.mean
        return scaled


def set_statistics(model: nn.Module, statistics: Mapping[str, Any]) -> None:
    """Tell the layers of a model that stand for columns what the federation found; nothing if it asked nothing."""
    if not statistics:
        return
    for module in model.modules():
        if isinstance(module, _Columns):
            module.know(statistics)
