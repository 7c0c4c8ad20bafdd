"""The Walsh-Hadamard transform, which spreads each element over all others: for compressed updates and for sketches."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

Element = TypeVar("Element", np.float32, np.float64)
_RUN: Final = 512
"""NumPy copies operands whose runs are shorter than its buffer, of 8,192 elements, through it, which takes longer than
to add them; with this one it does so in the first steps only."""


def walsh_hadamard(values: NDArray[Element], rows: int, spare: NDArray[Element]) -> NDArray[Element]:
    """The Walsh-Hadamard transform of each column of a matrix ([rows * columns]), not scaled.

    It is in one of the two arrays, which are of one size and are both overwritten.
    """
    source, target = values, spare
    columns, half = values.size // rows, 1
    usual = np.setbufsize(_RUN)
    try:
        while half < rows:
            pairs, out = (one.reshape(rows // (2 * half), 2, half * columns) for one in (source, target))
            np.add(pairs[:, 0], pairs[:, 1], out=out[:, 0])
            np.subtract(pairs[:, 0], pairs[:, 1], out=out[:, 1])
            source, target, half = target, source, 2 * half
    finally:
        np.setbufsize(usual)
    return source
