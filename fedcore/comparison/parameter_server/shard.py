"""The layout of the model over the shards of a parameter server.

A key is a tensor: first the trained parameters in the order of `named_parameters`, then the floating point buffers.
Laid one after the other they are one float32 vector, and each shard holds one range of it (Li et al. 2014, section
3.2). A range may begin and end inside a tensor, so that shards are of equal size whatever the model.

Buffers, such as running means, are carried along: a worker keeps its own and pushes them with every gradient, and the
server keeps the mean of those that came with the last step, for evaluation. Integer buffers stay as they began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from fedcore.errors import ConfigurationError
from fedcore.training.engines import MakeOptimizer


@dataclass(frozen=True, slots=True)
class Key:
    """One tensor of the vector: elements [start, stop).

    trained: a parameter, and not a buffer.
    """

    name: str
    start: int
    stop: int
    trained: bool


@dataclass(frozen=True, slots=True)
class Range:
    """Elements [start, stop) of the vector: what one shard holds."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def within(self, key: Key) -> slice:
        """The elements of the flattened tensor that lie in this range; empty if none does."""
        start = min(max(self.start, key.start), key.stop)
        return slice(start - key.start, max(start, min(self.stop, key.stop)) - key.start)


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """The keys of a model, divided over shards as evenly as they go; the same on every process."""

    keys: tuple[Key, ...]
    ranges: tuple[Range, ...]

    @classmethod
    def of(cls, module: nn.Module, *, shards: int) -> Self:
        """Raises ConfigurationError for a model that is not trained in float32, or has fewer numbers than shards."""
        keys, start = [], 0
        for name, tensor in _tensors(module).items():
            trained = isinstance(tensor, nn.Parameter)
            if trained and tensor.dtype != torch.float32:
                raise ConfigurationError(f"a parameter server trains float32 alone, and {name} is {tensor.dtype}")
            keys.append(Key(name, start, start + tensor.numel(), trained))
            start += tensor.numel()
        if not 0 < shards <= start:
            raise ConfigurationError(f"{start} numbers cannot be divided over {shards} shards")
        bounds = [start * number // shards for number in range(shards + 1)]
        return cls(tuple(keys), tuple(Range(a, b) for a, b in pairwise(bounds)))

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.ranges[-1].stop

    @property
    def trained(self) -> int:
        """How many elements, from the first on, are trained."""
        return sum(key.stop - key.start for key in self.keys if key.trained)


class FlatModel:
    """A model's values and gradients as vectors [size] of `KeyRanges`, on the CPU."""

    def __init__(self, module: nn.Module, ranges: KeyRanges) -> None:
        self._tensors = list(_tensors(module).values())
        self._shapes = [tensor.shape for tensor in self._tensors]
        self._sizes = [key.stop - key.start for key in ranges.keys]
        self._trained = sum(key.trained for key in ranges.keys)

    @torch.no_grad()
    def read(self, out: Tensor) -> None:
        """Copy the model's values into `out` [size]."""
        torch._foreach_copy_(self._views(out), [tensor.detach() for tensor in self._tensors])

    @torch.no_grad()
    def write(self, values: Tensor, *, buffers: bool) -> None:
        """Set the model's parameters, and its buffers if wanted, to `values` [size]."""
        count = len(self._tensors) if buffers else self._trained
        torch._foreach_copy_([tensor.detach() for tensor in self._tensors[:count]], self._views(values)[:count])

    @torch.no_grad()
    def read_gradient(self, out: Tensor) -> None:
        """Copy gradients, and behind them the buffers, into `out` [size]; zeros if there is no gradient."""
        for number, (view, tensor) in enumerate(zip(self._views(out), self._tensors, strict=True)):
            source = tensor.grad if number < self._trained else tensor
            if source is None:
                view.zero_()
            else:
                view.copy_(source)

    def _views(self, vector: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(torch.split(vector, self._sizes), self._shapes, strict=True)]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Trained parameters, then floating point buffers of the state, by name."""
    state = module.state_dict(keep_vars=True)
    trained = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
    buffers = {name: tensor for name, tensor in module.named_buffers() if name in state and tensor.is_floating_point()}
    return {**trained, **buffers}


# --- one range --------------------------------------------------------------------------------------------------------

_ELEMENTWISE: Final = frozenset(
    {"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"}
)
"""Optimizers of torch whose step on a number needs the history of that number alone: a range may be cut anywhere."""


class ModelShard:
    """The values [n] of one range and the app's own optimizer over them.

    The app makes its optimizer for the whole model, groups and all; then its parameters are replaced by what of them
    lies in this range. A tensor that lies in the range as a whole keeps its shape.
    """

    def __init__(self, module: nn.Module, optimizer: MakeOptimizer, ranges: KeyRanges, number: int) -> None:
        self._range = ranges.ranges[number]
        vector = torch.empty(ranges.size)
        FlatModel(module, ranges).read(vector)
        self.values = vector[self._range.start : self._range.stop].clone()
        self._trained = max(0, min(ranges.trained, self._range.stop) - self._range.start)
        self._optimizer = optimizer(module)
        if len(ranges.ranges) > 1 and type(self._optimizer).__name__ not in _ELEMENTWISE:
            raise ConfigurationError(
                f"{type(self._optimizer).__name__} may look at whole tensors, which shards cut: use shards=1"
            )
        self._parameters: list[tuple[nn.Parameter, slice]] = []
        self._replace_parameters(module, ranges)

    @torch.no_grad()
    def apply(self, pushes: Sequence[Tensor], scale: float) -> None:
        """One step with the sum of the gradients times `scale`; buffers become the mean of those that were pushed.

        Args:
            pushes: float32 [n] each, summed in their order, in the memory of the first.
        """
        total = pushes[0]
        for push in pushes[1:]:
            total.add_(push)
        self.values[self._trained :] = total[self._trained :] / len(pushes)
        if scale != 1.0:
            total[: self._trained].mul_(scale)
        for parameter, span in self._parameters:
            parameter.grad = total[span].view(parameter.shape)
        self._optimizer.step()

    def practise(self) -> None:
        """A step with a gradient of zeros, of a shard that is thrown away."""
        self.apply([torch.zeros_like(self.values)], 1.0)

    def _replace_parameters(self, module: nn.Module, ranges: KeyRanges) -> None:
        """Give the optimizer views of `values` in place of the model's parameters."""
        trained = dict(module.named_parameters())
        cut: dict[Tensor, tuple[nn.Parameter, slice]] = {}
        for key in ranges.keys:
            part = self._range.within(key)
            if not key.trained or part.start == part.stop:
                continue
            tensor = trained[key.name]
            shape = tensor.shape if part.stop - part.start == tensor.numel() else (-1,)
            start = key.start + part.start - self._range.start
            span = slice(start, start + part.stop - part.start)
            parameter = nn.Parameter(self.values[span].view(shape))
            self._parameters.append((parameter, span))
            cut[tensor] = (parameter, part)
        for group in self._optimizer.param_groups:
            group["params"] = [cut[tensor][0] for tensor in group["params"] if tensor in cut]
        history: dict[Tensor, Any] = {
            cut[tensor][0]: {name: _cut(value, tensor, *cut[tensor]) for name, value in state.items()}
            for tensor, state in self._optimizer.state.items()
            if tensor in cut
        }
        self._optimizer.state.clear()
        self._optimizer.state.update(history)


def _cut(value: Any, tensor: Tensor, parameter: nn.Parameter, part: slice) -> Any:
    """What of an optimizer's history of a whole tensor, kept from the start on, belongs to the part in this range."""
    if isinstance(value, Tensor) and value.shape == tensor.shape and value.dim():
        return value.reshape(-1)[part].clone().view(parameter.shape)
    return value
