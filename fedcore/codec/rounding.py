"""Stochastic rounding of scaled values, in blocks that stay in the cache.

floor(x) or floor(x) + 1, the latter with probability x - floor(x): the expectation is x, so that
rounding errors average out over clients and rounds instead of building up. The random bits come
from ChaCha20 (RFC 8439), because a server that could predict them would learn more about x than
the rounded value says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedcore.codec.packing import field_dtype

BLOCK = 1 << 15
"""Elements handled at a time: four float32 or float64 buffers of it fit the second-level cache."""

_KEY_BYTES = 32
_NONCE = bytes(16)
_RANDOM_BITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSummary:
    """What happened to one block: its largest |x| before clipping, and how many were clipped."""

    largest: float
    clipped: int


class StochasticRounder:
    """Rounds blocks of at most BLOCK values to fields, for one encoding.

    `levels` is L; `randomness(32)` gives the key of a keystream that is used for nothing else, so
    the nonce is constant. Fields are uint16 for 16-bit fields, else uint32.

    Arithmetic is float32 for fields up to 21 bits, whose levels float32 represents exactly, and
    float64 for 32 bits. 16 random bits decide each value: the probability is right to 2^-17, so the
    expectation is right to 2^-17 of a step.
    """

    def __init__(self, *, field_bits: int, levels: int, randomness: Callable[[int], bytes]) -> None:
        self._levels = levels
        real = np.float64 if field_bits == 32 else np.float32
        self._scaled = np.empty(BLOCK, real)
        self._floor = np.empty(BLOCK, real)
        self._dice = np.empty(BLOCK, real)
        self._up = np.empty(BLOCK, np.bool_)
        self._fields = np.empty(BLOCK, field_dtype(field_bits))
        self._bits = np.empty(BLOCK, np.uint16)
        self._zeros = bytes(self._bits.nbytes)
        cipher = Cipher(algorithms.ChaCha20(randomness(_KEY_BYTES), _NONCE), mode=None)
        self._stream = cipher.encryptor()

    def round(self, values: NDArray[np.float32], factor: float) -> tuple[NDArray[Any], BlockSummary]:
        """Fields of values * factor, clipped to [-L, L] and offset by L; valid until the next call.

        `values` ([m], finite, m <= BLOCK) is not changed.
        """
        count = values.size
        scaled, floor, fields = self._scaled[:count], self._floor[:count], self._fields[:count]
        with np.errstate(over="ignore"):
            np.multiply(values, scaled.dtype.type(factor), out=scaled)
        summary = self._clip(scaled)
        np.floor(scaled, out=floor)
        np.subtract(scaled, floor, out=scaled)
        up = self._decide(scaled)
        # The sum with L is a whole number that the dtype holds exactly, and never negative.
        np.add(floor, self._levels, out=floor)
        np.copyto(fields, floor, casting="unsafe")
        np.add(fields, up.view(np.uint8), out=fields)
        return fields, summary

    def _clip(self, scaled: NDArray[Any]) -> BlockSummary:
        """Clip in place; the count costs a pass only in the rare block that needs it."""
        if not scaled.size:
            return BlockSummary(largest=0.0, clipped=0)
        largest = max(float(scaled.max()), -float(scaled.min()))
        clipped = 0
        if largest > self._levels:
            clipped = int(np.count_nonzero(np.abs(scaled) > self._levels))
            np.clip(scaled, -self._levels, self._levels, out=scaled)
        return BlockSummary(largest=largest, clipped=clipped)

    def _decide(self, fraction: NDArray[Any]) -> NDArray[np.bool_]:
        """True with probability `fraction` ([m], in [0, 1], overwritten)."""
        count = fraction.size
        bits, dice, up = self._bits[:count], self._dice[:count], self._up[:count]
        self._stream.update_into(memoryview(self._zeros)[: 2 * count], bits.view(np.uint8).data)
        np.copyto(dice, bits)
        # (k + 1/2) / 2^16 < fraction, k uniform: never for a fraction of 0, always for 1.
        fraction *= 1 << _RANDOM_BITS
        fraction -= 0.5
        np.less(dice, fraction, out=up)
        return up
