"""What the server can see of its newest exchange: the first numbers of three vectors, in memory.

Without the masks, a masked update and the masked sum are random numbers; the mean is the purpose of the sum. Nothing of
this is written to disk, and there is no view of an exchange that gave no sum.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.state import ModelState
from fedcore.wire.watch import ServerViewOut

MOST_NUMBERS: Final = 32
"""Numbers of each vector."""
_WORD_BITS: Final = 64
_MOST_BITS: Final = 32
"""A number of a browser is exact up to 53 bits; wider fields are shown in halves."""


@dataclass(slots=True)
class ServerView:
    """The view of one exchange at a time."""

    _run: str = ""
    _view: ServerViewOut | None = None

    def note(self, run: str, view: ServerViewOut) -> None:
        """An exchange has given a sum."""
        self._run, self._view = run, view

    def of(self, run: str) -> ServerViewOut | None:
        """The view of the newest exchange; None if that exchange is of another run."""
        return self._view if run == self._run else None


def fields(words: NDArray[np.uint64], field_bits: int) -> tuple[int, list[int]]:
    """The first fields of packed words `[words]`, and how many bits each has here."""
    bits = min(field_bits, _MOST_BITS)
    mask = np.uint64((1 << bits) - 1)
    lanes = [(words >> np.uint64(shift)) & mask for shift in range(0, _WORD_BITS - bits + 1, bits)]
    return bits, [int(number) for number in np.stack(lanes, axis=1).reshape(-1)[:MOST_NUMBERS]]


def first_values(model: ModelState) -> list[float | None]:
    """The first numbers of a model, in the order of its tensors; None for one that is none."""
    tensors = (model.float32(name, 0, MOST_NUMBERS).tolist() for name in model)
    numbers = itertools.islice(itertools.chain.from_iterable(tensors), MOST_NUMBERS)
    return [float(number) if math.isfinite(number) else None for number in numbers]
