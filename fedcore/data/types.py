"""The data set that a loader returns: arrays in memory, nothing lazy, nothing that belongs to one framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError

Array: TypeAlias = NDArray[Any]
Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The training or the test half of a data set.

    x: features [n, ...]; float32 as the model takes them, or uint8 grey levels (255 is 1.0),
       which keeps an image set at a quarter of the memory until a client has taken its part.
    y: labels, int64 [n], or [n, length] for next-character targets; or numbers, float32 [n] or [n, k].
    groups: int64 [n], the natural owner (hospital, writer, role) of each row; None without one.
    """

    x: Array
    y: Array
    groups: Integers | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.x), len(self.y)}
        if self.groups is not None:
            lengths.add(len(self.groups))
        if len(lengths) != 1:
            raise UsageError(f"x, y and groups of a split differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Integers) -> Split:
        """A copy of the given rows, in the given order."""
        groups = None if self.groups is None else self.groups[rows]
        return Split(x=self.x[rows], y=self.y[rows], groups=groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set with its fixed test half.

    classes: number of classes, or the size of the vocabulary.
    group_names: names of the natural groups, by the index used in `Split.groups`; empty if none.
    """

    name: str
    train: Split
    test: Split
    classes: int
    group_names: tuple[str, ...] = ()
