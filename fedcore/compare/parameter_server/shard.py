"""One shard of a parameter server: a range of the model's vector, and the optimizer over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedcore.compare.parameter_server.keys import FlatModel, KeyRanges
from fedcore.errors import ConfigurationError
from fedcore.training.engines import MakeOptimizer

_ELEMENTWISE: Final = frozenset(
    {"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"}
)
"""Optimizers of torch whose step on a number needs the history of that number alone: a range may be cut anywhere."""


class Shard:
    """The values [n] of one range and the app's own optimizer over them.

    The app makes its optimizer for the whole model, groups and all; then its parameters are replaced by their pieces in
    this range. A tensor that lies in the range as a whole keeps its shape.
    """

    def __init__(self, module: nn.Module, optimizer: MakeOptimizer, ranges: KeyRanges, number: int) -> None:
        self._range = ranges.ranges[number]
        whole = torch.empty(ranges.size)
        FlatModel(module, ranges).read(whole)
        self.values = whole[self._range.start : self._range.stop].clone()
        self._trained = max(0, min(ranges.trained, self._range.stop) - self._range.start)
        self._optimizer = optimizer(module)
        if len(ranges.ranges) > 1 and type(self._optimizer).__name__ not in _ELEMENTWISE:
            raise ConfigurationError(
                f"{type(self._optimizer).__name__} may look at whole tensors, which shards cut: use shards=1"
            )
        self._places: list[tuple[nn.Parameter, slice]] = []
        self._replace_parameters(module, ranges)

    @torch.no_grad()
    def apply(self, pushes: Sequence[Tensor], scale: float) -> None:
        """One step with the sum of the gradients times `scale`; buffers become the mean of those that were pushed.

        pushes: float32 [n] each, summed in their order, in the memory of the first.
        """
        total = pushes[0]
        for push in pushes[1:]:
            total.add_(push)
        self.values[self._trained :] = total[self._trained :] / len(pushes)
        if scale != 1.0:
            total[: self._trained].mul_(scale)
        for piece, place in self._places:
            piece.grad = total[place].view(piece.shape)
        self._optimizer.step()

    def _replace_parameters(self, module: nn.Module, ranges: KeyRanges) -> None:
        """Give the optimizer views of `values` in place of the model's parameters."""
        trained = dict(module.named_parameters())
        pieces: dict[Tensor, tuple[nn.Parameter, slice]] = {}
        for key in ranges.keys:
            part = self._range.within(key)
            if not key.trained or part.start == part.stop:
                continue
            whole = trained[key.name]
            shape = whole.shape if part.stop - part.start == whole.numel() else (-1,)
            start = key.start + part.start - self._range.start
            place = slice(start, start + part.stop - part.start)
            piece = nn.Parameter(self.values[place].view(shape))
            self._places.append((piece, place))
            pieces[whole] = (piece, part)
        for group in self._optimizer.param_groups:
            group["params"] = [pieces[whole][0] for whole in group["params"] if whole in pieces]
        history: dict[Tensor, Any] = {
            pieces[whole][0]: {name: _cut(value, whole, *pieces[whole]) for name, value in state.items()}
            for whole, state in self._optimizer.state.items()
            if whole in pieces
        }
        self._optimizer.state.clear()
        self._optimizer.state.update(history)


def _cut(value: Any, whole: Tensor, piece: nn.Parameter, part: slice) -> Any:
    """What belongs to a piece of what an optimizer keeps about a whole tensor from the start on."""
    if isinstance(value, Tensor) and value.shape == whole.shape and value.dim():
        return value.reshape(-1)[part].clone().view(piece.shape)
    return value
