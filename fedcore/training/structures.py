"""Inputs, targets and outputs of several tensors: tuples, lists, dicts and dataclasses of them, and of these.

What a DataLoader gives is passed on as it is: each tensor goes to the device, and keeps its place (`moved`). Each has
one row for each example, or stands in a list with one item for each, so that a batch can be divided among ranks and
micro-batches.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fedcore.errors import UsageError

Structure: TypeAlias = Any
"""A tensor [n, ...], or a tuple, list, mapping or dataclass of structures."""

TARGETS: Final = ("labels", "label")
"""The targets in a batch that is a mapping, as in Hugging Face's."""


def map_tensors(
    function: Callable[[Tensor], Tensor], value: Structure, *, other: Callable[[Any], Any] | None = None
) -> Structure:
    """The same structure with `function` of each of its tensors.

    Raises UsageError, check "no-tensor", if it holds anything else and there is no `other`, a function of that.
    """
    if isinstance(value, Tensor):
        return function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        present = {name: map_tensors(function, one, other=other) for name, one in fields.items() if one is not None}
        return dataclasses.replace(value, **present)
    if isinstance(value, Mapping):
        return {name: map_tensors(function, one, other=other) for name, one in value.items()}
    if isinstance(value, tuple | list) and (other is None or not isinstance(value, PackedSequence)):
        parts = [map_tensors(function, one, other=other) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if other is not None:
        return other(value)
    raise UsageError(
        f"a batch holds {_article(type(value).__name__)} where a tensor is expected: tensors, and tuples, lists, dicts "
        "and dataclasses of them. Leave out what the model does not take, make tensors of it in the dataset's "
        "collate_fn, or train by a loss of (model, batch), which gets the batch as it is",
        check="no-tensor",
    )


def moved(batch: Any, device: torch.device) -> Any:
    """The batch on a device: its tensors, and what moves itself by a method `to`; all else stays as it is."""

    def send(value: Any) -> Any:
        return value.to(device) if callable(getattr(value, "to", None)) else value

    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch, other=send)


def leaves(value: Structure) -> list[Tensor]:
    """Its tensors, in order; raises as `map_tensors` does."""
    return _gathered(value, None)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a batch that may hold other things, which are left out."""
    return _gathered(value, lambda one: one)


def _gathered(value: Any, other: Callable[[Any], Any] | None) -> list[Tensor]:
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(note, value, other=other)
    return tensors


def rows_in(value: Structure) -> int:
    """The number of examples n, which each tensor [n, ...] or list of n items has.

    Raises UsageError, check "rows-differ", if they differ.
    """
    if isinstance(value, Tensor) and value.dim():
        return len(value)
    shapes = [list(tensor.shape) for tensor in leaves(value)]
    numbers = {tuple(shape[:1]) for shape in shapes}
    if len(numbers) == 1 and shapes[0]:
        return shapes[0][0]
    items = _items(value)
    if items is None:
        raise _rows_differ(shapes)
    return items


def split_rows(value: Structure, count: int) -> Iterator[Structure]:
    """`count` structures with consecutive rows, as `torch.tensor_split` cuts them; raises what `rows_in` does."""
    examples = examples_in_batch(value)
    sizes = [len(part) for part in torch.arange(examples).tensor_split(count)]
    cuts = [sum(sizes[:number]) for number in range(count + 1)]
    for start, stop in itertools.pairwise(cuts):
        yield rows_of(value, start, stop)


def examples_in_batch(batch: Any) -> int:
    """As `rows_in`, of a batch that may hold lists of other things than tensors."""
    try:
        return rows_in(batch)
    except UsageError:
        items = _items(batch)
        if items is None:
            raise
        return items


def rows_of(value: Structure, start: int, stop: int) -> Structure:
    """The examples from `start` to `stop` of a batch of `examples_in_batch`."""
    try:
        shapes = {tuple(tensor.shape[:1]) for tensor in leaves(value)}
    except UsageError:
        shapes = set()
    if len(shapes) == 1 and () not in shapes:
        return map_tensors(lambda tensor: tensor[start:stop], value)
    return _cut(value, start, stop)


def _items(value: Any) -> int | None:
    """The number of examples of a batch whose parts are tensors and lists of one item for each; None for others."""
    parts = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(parts, tuple | list) or not parts:
        return None
    numbers = {_length(part) for part in parts}
    return numbers.pop() if len(numbers) == 1 else None


def _length(part: Any) -> int | None:
    if isinstance(part, Tensor):
        return len(part) if part.dim() else None
    if isinstance(part, Mapping):
        return _items(part)
    return len(part) if isinstance(part, tuple | list) else None


def _cut(value: Any, start: int, stop: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(part, start, stop) for name, part in value.items()}
    parts = [_cut(part, start, stop) if isinstance(part, Mapping) else part[start:stop] for part in value]
    return type(value)(parts)


def _rows_differ(shapes: list[list[int]]) -> UsageError:
    return UsageError(
        f"the tensors of a batch have the shapes {', '.join(map(str, shapes)) or 'of none'}: each needs one row "
        "for each example, so that a batch can be divided. Stack or pad them in the dataset's collate_fn, or give "
        "lists with one item for each example",
        check="rows-differ",
    )


def call(module: nn.Module, inputs: Structure) -> Any:
    """A model's output: of a dict `module(**inputs)`, of a tuple or list `module(*inputs)`, else `module(inputs)`."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    if isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields"):
        return module(*inputs)
    return module(inputs)


def pair_in(batch: Any) -> tuple[Structure, Structure] | None:
    """Inputs and targets of what a DataLoader gave, a pair or a mapping with `labels` (or `label`); None for others."""
    if isinstance(batch, Mapping):
        key = next((name for name in TARGETS if name in batch), None)
        if key is not None:
            return {name: value for name, value in batch.items() if name != key}, batch[key]
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    return None


def no_pair(batch: Any) -> UsageError:
    """For a batch that is no pair of inputs and targets, where a loss of (output, targets) needs one."""
    what = f"a dict with {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else _of_several(batch)
    return UsageError(
        f"the dataset gives {what}: give pairs (inputs, targets), or dicts whose targets are under 'labels' (inputs "
        "and targets may be tuples or dicts themselves), or train by a loss of (model, batch), which gets the batch as "
        "it is",
        check="no-pair",
    )


def _of_several(batch: Any) -> str:
    if isinstance(batch, tuple | list):
        return f"{_article(type(batch).__name__)} of {len(batch)}"
    return _article(type(batch).__name__)


def _article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
