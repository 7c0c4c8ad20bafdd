"""A vector on the device that this machine has, or on the processor, where Triton's interpreter takes its place."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.codec import DeviceVector
from fedcore.codec.gpu import device

if not torch.cuda.is_available():
    # The interpreter takes its time for each operation, however many lanes that has.
    device.PROGRAM_BLOCKS, device.PROGRAM_FIELDS = 1 << 14, 1 << 18
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def vector_of(words: NDArray[np.uint64] | int) -> DeviceVector:
    """A vector that holds `words`, or so many zeros."""
    vector = DeviceVector(words if isinstance(words, int) else words.size, DEVICE)
    if not isinstance(words, int):
        vector.load(words, 0, words.size)
    return vector


def words_of(vector: DeviceVector, count: int) -> NDArray[np.uint64]:
    """What a vector of `count` words holds: no mask is added."""
    words = np.full(count, 7, np.uint64)
    vector.apply_masks(words, [])
    return words
