"""A short secret sketch of a model, from which alone the distance of two models can be told.

A sketch is BUCKETS random linear combinations of a model's floating point elements: the squared length of the
difference of two sketches has the squared distance of the models for its expectation, and a relative standard error of
sqrt(2 / BUCKETS), 3 % of the distance (Johnson and Lindenstrauss 1984; with signs and Walsh-Hadamard transforms: Ailon
and Chazelle 2006, "Approximate nearest neighbors and the fast Johnson-Lindenstrauss transform"). The transform spreads
each element over all buckets, so that a difference that lies in two elements alone is measured as well as any other.

Signs come from a seed (ChaCha20, RFC 8439). Who knows it can make models that lie near each other and have sketches
that do not; so it stays with its client. Sums of float64 in a fixed order: the same bits on every machine.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedcore.errors import EncodingError
from fedcore.state.layout import TensorSpec
from fedcore.state.model import ModelState
from fedcore.state.walsh_hadamard import walsh_hadamard

BUCKETS: Final = 512
SEED_BYTES: Final = 32
_UNIT: Final = 1 << 16
"""Elements that are transformed at once: 512 KiB as float64."""
_SIGNS: Final = b"fedcore/state/sketch/signs/v1"
_NAME: Final = b"fedcore/state/sketch/name/v1"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sketch:
    """What is left of a model.

    seed: names the seed that it was made with.
    layout: `Layout.digest` of the model, hex.
    values: float64, [BUCKETS], or fewer of a smaller model.
    """

    seed: str
    layout: str
    values: NDArray[np.float64]

    def distance(self, other: Self) -> float:
        """The L2 distance of the two models; infinite if they have other layouts, or sketches of another seed."""
        if (self.seed, self.layout, self.values.size) != (other.seed, other.layout, other.values.size):
            return math.inf
        with np.errstate(over="ignore"):
            return float(np.linalg.norm(self.values - other.values))

    def to_text(self) -> str:
        """The values as base64."""
        return base64.b64encode(self.values.astype("<f8").tobytes()).decode("ascii")

    @classmethod
    def from_text(cls, text: str, *, seed: str, layout: str) -> Self:
        """The inverse of `to_text`; raises EncodingError."""
        try:
            values = np.frombuffer(base64.b64decode(text, validate=True), "<f8")
        except ValueError:
            values = np.zeros(0)
        if not 0 < values.size <= BUCKETS or not np.isfinite(values).all():
            raise EncodingError("a sketch of a model is damaged", check="sketch")
        return cls(seed=seed, layout=layout, values=values)


class Sketcher:
    """Makes the sketches of one seed, which are comparable with each other."""

    def __init__(self, seed: bytes) -> None:
        """Take a secret seed of SEED_BYTES random bytes."""
        self._key = hashlib.sha256(_SIGNS + seed).digest()
        self.name = hashlib.sha256(_NAME + seed).hexdigest()[:16]
        """Names the seed, and tells nothing else of it."""

    def __repr__(self) -> str:
        return f"Sketcher({self.name})"

    def sketch(self, state: ModelState) -> Sketch | None:
        """The sketch of a model, read once, block by block.

        Of a model that has no more elements than there are buckets it is those elements. Elements that are not finite
        count as zero. None for a model without floating point tensors, and if sums of its elements are too large for
        float64.
        """
        elements = sum(spec.size for spec in state.layout.floats)
        if not elements:
            return None
        values = np.zeros(min(elements, BUCKETS))
        spare = np.empty(_UNIT)
        for number, unit in enumerate(_units(state)):
            with np.errstate(over="ignore", invalid="ignore"):
                if not math.isfinite(float(unit.sum())):
                    np.nan_to_num(unit, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
                values += unit[:elements] if elements <= BUCKETS else self._spread(number, unit, spare)
            state.release()
        if not np.isfinite(values).all():
            return None
        return Sketch(seed=self.name, layout=state.layout.digest().hex(), values=values)

    def _spread(self, number: int, unit: NDArray[np.float64], spare: NDArray[np.float64]) -> NDArray[np.float64]:
        """D' H D x of each column of a unit ([BUCKETS * columns], overwritten), summed over the columns: [BUCKETS]."""
        # The first half of the signs belongs before the transform, the second one after it.
        nonce = bytes(4) + number.to_bytes(12, "little")
        stream = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor().update(bytes(unit.size // 4))
        before, after = np.unpackbits(np.frombuffer(stream, np.uint8)).reshape(2, unit.size)
        _flip(unit, before)
        spread = walsh_hadamard(unit, BUCKETS, spare[: unit.size])
        _flip(spread, after)
        total: NDArray[np.float64] = spread.reshape(BUCKETS, -1).sum(axis=1)
        return total / math.sqrt(BUCKETS)


def _units(state: ModelState) -> Iterator[NDArray[np.float64]]:
    """All floating point elements in the order of the layout, in units, with zeros up to a multiple of BUCKETS."""
    room, end = np.empty(_UNIT), 0
    for spec in state.layout.floats:
        start = 0
        while start < spec.size:
            stop = min(spec.size, start + _UNIT - end)
            room[end : end + stop - start] = _elements(state, spec, start, stop)
            start, end = stop, end + stop - start
            if end == _UNIT:
                yield room
                end = 0
    if end:
        size = -(-end // BUCKETS) * BUCKETS
        room[end:size] = 0
        yield room[:size]


def _elements(state: ModelState, spec: TensorSpec, start: int, stop: int) -> NDArray[np.floating]:
    if spec.dtype == "F64":
        elements: NDArray[np.floating] = state[spec.name].reshape(-1)[start:stop]
        return elements
    return state.float32(spec.name, start, stop)


def _flip(values: NDArray[np.float64], bits: NDArray[np.uint8]) -> None:
    """Turn the sign of each value whose bit is a one, in place."""
    words = values.view(np.uint64)
    np.bitwise_xor(words, bits.astype(np.uint64) << np.uint64(63), out=words)
