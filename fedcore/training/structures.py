"""Inputs, targets and outputs of several tensors: tuples, lists, dicts and dataclasses of them, and of these.

What a DataLoader gives is passed on as it is: each tensor goes to the device, and keeps its place. Each has one row for
each example, so that a batch can be divided among ranks and micro-batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from fedcore.errors import UsageError

Structure: TypeAlias = Any
"""A tensor [n, ...], or a tuple, list, mapping or dataclass of structures."""

TARGETS: Final = ("labels", "label")
"""The targets in a batch that is a mapping, as in Hugging Face's."""


def map_tensors(function: Callable[[Tensor], Tensor], value: Structure) -> Structure:
    """The same structure with `function` of each of its tensors.

    Raises UsageError, check "no-tensor", if it holds anything else.
    """
    if isinstance(value, Tensor):
        return function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        present = {name: map_tensors(function, one) for name, one in fields.items() if one is not None}
        return dataclasses.replace(value, **present)
    if isinstance(value, Mapping):
        return {name: map_tensors(function, one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        parts = [map_tensors(function, one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    raise UsageError(
        f"a batch holds {_article(type(value).__name__)} where a tensor is expected: tensors, and tuples, lists, dicts "
        "and dataclasses of them. Leave out what the model does not take, or make tensors of it in the dataset's "
        "collate_fn",
        check="no-tensor",
    )


def leaves(value: Structure) -> list[Tensor]:
    """Its tensors, in order."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(note, value)
    return tensors


def rows_in(value: Structure) -> int:
    """The number of examples n; raises UsageError, check "rows-differ", if it is not that of each tensor [n, ...]."""
    if isinstance(value, Tensor):
        return len(value)
    shapes = [list(tensor.shape) for tensor in leaves(value)]
    if not shapes or len({tuple(shape[:1]) for shape in shapes}) > 1 or not shapes[0]:
        raise UsageError(
            f"the tensors of a batch have the shapes {', '.join(map(str, shapes)) or 'of none'}: each needs one row "
            "for each example, so that a batch can be divided. Stack or pad them in the dataset's collate_fn",
            check="rows-differ",
        )
    return shapes[0][0]


def split_rows(value: Structure, count: int) -> Iterator[Structure]:
    """`count` structures with consecutive rows, as `torch.tensor_split` cuts them."""
    cuts = [torch.tensor_split(tensor, count) for tensor in leaves(value)]
    for parts in zip(*cuts, strict=True):
        yield _with_tensors(value, iter(parts))


def _with_tensors(value: Structure, tensors: Iterator[Tensor]) -> Structure:
    return map_tensors(lambda _: next(tensors), value)


def call(module: nn.Module, inputs: Structure) -> Any:
    """A model's output: of a dict `module(**inputs)`, of a tuple or list `module(*inputs)`, else `module(inputs)`."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    if isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields"):
        return module(*inputs)
    return module(inputs)


def divided(batch: Any) -> tuple[Structure, Structure]:
    """Inputs and targets of what a DataLoader gave: a pair, or a mapping with `labels` (or `label`).

    Raises UsageError, check "no-pair", for anything else.
    """
    if isinstance(batch, Mapping):
        key = next((name for name in TARGETS if name in batch), None)
        if key is not None:
            return {name: value for name, value in batch.items() if name != key}, batch[key]
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    what = f"a dict with {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else _of_several(batch)
    raise UsageError(
        f"the dataset gives {what}: give pairs (inputs, targets), or dicts whose targets are under 'labels'. Inputs "
        "and targets may be tuples or dicts themselves",
        check="no-pair",
    )


def _of_several(batch: Any) -> str:
    if isinstance(batch, tuple | list):
        return f"{_article(type(batch).__name__)} of {len(batch)}"
    return _article(type(batch).__name__)


def _article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
