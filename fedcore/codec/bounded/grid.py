"""Updates on a grid of whole steps within a bound on their norm, two lanes of 32 bits to a word, all of one weight.

What sums with noise (`privacy.noised`) and sums with norm proofs (`bounded`) have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import Span
from fedcore.codec.privacy import BLOCK, ROUNDING, KeyStream
from fedcore.codec.scaling.statistics import MagnitudeStatistics
from fedcore.codec.update import write_delta
from fedcore.errors import PeerError, UsageError
from fedcore.state import Layout, ModelState, StateSink, TensorSpec, from_float

LANE_BITS: Literal[32] = 32
LANES: Final = 64 // LANE_BITS

_ATTEMPTS: Final = 64

Blocks: TypeAlias = Callable[[], Iterator[NDArray[Any]]]
"""The coordinates before rounding, block by block ([m], m <= BLOCK), as often as it is called."""


class Grid(Protocol):
    """An encoding of this kind."""

    @property
    def floats(self) -> tuple[TensorSpec, ...]:
        """The tensors, in order; their elements are the first coordinates."""

    @property
    def coordinates(self) -> int:
        """Number of values in the vector."""

    @property
    def clip(self) -> float:
        """L2 bound on the update."""

    @property
    def norm_squared(self) -> int:
        """Largest squared norm of the rounded coordinates, in steps."""

    @property
    def offset(self) -> int:
        """Steps added to each coordinate, so that none is negative."""

    @property
    def step(self) -> float:
        """Size of one step, in units of the update."""


def update_blocks(encoding: Grid, layout: Layout, base: ModelState | None, local: ModelState | None) -> Blocks:
    """The update, local - base, as float32; each block is overwritten by the next.

    Raises EncodingError for a model of another layout, UsageError for none.
    """
    if base is None or local is None:
        raise UsageError("this encoding carries an update; pass the global and the local state")
    layout.check_same(base.layout, what="the global model")
    layout.check_same(local.layout, what="the trained model")
    return lambda: _deltas(encoding, base, local)


def no_update(encoding: Grid) -> Iterator[NDArray[Any]]:
    """Zeros for all coordinates but that of failures."""
    values = encoding.coordinates - 1
    return (np.zeros(min(BLOCK, values - start)) for start in range(0, values, BLOCK))


def _deltas(encoding: Grid, base: ModelState, local: ModelState) -> Iterator[NDArray[Any]]:
    buffer = np.empty(BLOCK, np.float32)
    for index, spec in enumerate(encoding.floats):
        for start in range(0, spec.size, BLOCK):
            span = Span(index=index, spec=spec, start=start, stop=min(start + BLOCK, spec.size), position=start)
            write_delta(span, base, local, buffer[: span.size])
            yield buffer[: span.size]


def clip_factor(encoding: Grid, blocks: Blocks) -> float:
    """What brings an update within its bound: at most 1. The norm is of float64, so that no float32 overflows."""
    squares = 0.0
    for block in blocks():
        wide = block.astype(np.float64)
        squares += float(np.square(wide, out=wide).sum())
    norm = math.sqrt(squares)
    return encoding.clip / norm if norm > encoding.clip else 1.0


def round_coordinates(
    encoding: Grid,
    lanes: NDArray[np.uint32],
    blocks: Blocks,
    factor: float,
    *,
    failed: bool,
    randomness: Callable[[int], bytes],
) -> None:
    """Write `blocks` times `factor`, and behind them the coordinate of failures, as signed steps into the lanes."""
    last = np.full(1, encoding.clip if failed else 0.0)
    round_within_norm(
        encoding, lanes.view(np.int32), lambda: chain(blocks(), (last,)), factor / encoding.step, randomness
    )


def round_within_norm(
    encoding: Grid,
    lanes: NDArray[np.int32],
    blocks: Blocks,
    factor: float,
    randomness: Callable[[int], bytes],
) -> None:
    """Write the coordinates times `factor`, rounded stochastically, again until the norm is within the bound.

    The check is on integers: neither float32 nor a client's own mistakes in clipping can get past it. One attempt fails
    with a chance of at most `ROUNDING_BETA`, so if all of them do the vector was longer than its bound before:
    UsageError.
    """
    stream = KeyStream(randomness, ROUNDING)
    limit = encoding.norm_squared
    dice = np.empty(BLOCK, np.uint32)
    for _ in range(_ATTEMPTS):
        squares, position = 0, 0
        for block in blocks():
            part = dice[: block.size]
            stream.fill(part)
            # floor(x + u), u uniform in [0, 1): x or the next whole number, with expectation x.
            scaled = part * 2.0**-32
            scaled += block * np.float64(factor)
            steps = np.floor(scaled, out=scaled).astype(np.int64)
            squares += int(steps @ steps)
            lanes[position : position + steps.size] = steps
            position += steps.size
        if squares <= limit:
            return
    raise UsageError(
        "the update is longer than its clipping bound; nothing of it is sent", check="longer-than-clipping"
    )


def check_lanes(encoding: Grid, words: NDArray[np.uint64], survivors: int) -> NDArray[np.uint32]:
    """The coordinates of a sum; PeerError for one that honest clients cannot make."""
    lanes = words.view(np.uint32)
    if lanes[encoding.coordinates :].any():
        raise PeerError("the padding of the sum is not zero: a client sent a malformed update", check="padding")
    lanes = lanes[: encoding.coordinates]
    if lanes.size and int(lanes.max()) > survivors * 2 * encoding.offset:
        raise PeerError("the sum is out of range: a client sent a malformed update", check="malformed-update")
    return lanes


def total(encoding: Grid, lanes: NDArray[np.uint32], survivors: int) -> NDArray[np.float64]:
    """The sum of coordinates over the survivors, in units of the update."""
    values = lanes.astype(np.float64)
    values -= survivors * encoding.offset
    values *= encoding.step
    return values


def fill_mean(
    encoding: Grid,
    lanes: NDArray[np.uint32],
    survivors: int,
    divisor: int,
    base: ModelState,
    release: Callable[[], None],
    sink: StateSink,
) -> None:
    """Write the global model plus the mean, in the layout's dtypes.

    Args:
        encoding: of the sum.
        lanes: coordinates of the sum.
        survivors: clients in it.
        divisor: by how many the sum is divided.
        base: the global model.
        release: called when a tensor is done, to free memory of the sum.
        sink: where the new model goes.
    """
    position = 0
    for spec in encoding.floats:
        for start in range(0, spec.size, BLOCK):
            stop = min(start + BLOCK, spec.size)
            mean = total(encoding, lanes[position : position + stop - start], survivors)
            mean /= divisor
            if spec.dtype == "BF16":
                mean += base.float32(spec.name, start, stop)
            else:
                mean += base[spec.name].reshape(-1)[start:stop]
            sink.write(spec, start, from_float(spec, mean))
            position += stop - start
        base.release()
        release()


def no_statistics(survivors: int, failures: int = 0) -> MagnitudeStatistics:
    """Nothing is known about magnitudes, and nothing is needed: the scale follows from the clipping bound."""
    return MagnitudeStatistics(
        contributors=survivors - failures,
        failures=failures,
        field_bits=0,
        scales=(),
        peaks=(),
        measured=(),
        saturated=(),
        clipped=(),
        shrunk=0,
    )
