"""One client's update to words with a bound on their norm; and the sum of such words to an unweighted mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.bounded.grid import (
    LANE_BITS,
    Blocks,
    check_lanes,
    clip_factor,
    fill_mean,
    no_statistics,
    no_update,
    round_coordinates,
    total,
    update_blocks,
)
from fedcore.codec.bounded.parameters import BoundedEncoding
from fedcore.codec.decoder import Decoded, check_sum, filled
from fedcore.codec.encoder import Encoded, check_out
from fedcore.codec.gpu.device import DeviceVector
from fedcore.codec.metrics import MetricValue
from fedcore.errors import NothingContributed
from fedcore.state import ModelState


def encode_bounded(
    encoding: BoundedEncoding,
    *,
    base: ModelState | None,
    local: ModelState | None,
    examples: int,
    metrics: Mapping[str, MetricValue],
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None = None,
    threads: int = 1,
    factor: float = 1.0,
    device: DeviceVector | None = None,
) -> Encoded:
    """Clip, scale by `factor` (0 to 1), and round to the grid until the norm is within its bound.

    `metrics` are left out. `randomness(k)` returns k secret random bytes. Every client weighs the same, whatever its
    `examples`; one thread does the work, and words go to the `device` when they are done. Raises EncodingError, naming
    the tensor, for what is not finite or does not match the layout.
    """
    blocks = update_blocks(encoding, encoding.layout, base, local)
    shrink = clip_factor(encoding, blocks)
    words = _rounded(encoding, blocks, shrink * factor, failed=False, randomness=randomness, out=out)
    return Encoded(words=words, clipped=0, shrunk=shrink < 1, overflowed=False).loaded(device)


def encode_nothing_bounded(
    encoding: BoundedEncoding,
    *,
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None = None,
    device: DeviceVector | None = None,
) -> Encoded:
    """What a client sends that contributes nothing: zeros, and the bound in the coordinate of failures."""
    blocks = partial(no_update, encoding)
    words = _rounded(encoding, blocks, 1.0, failed=True, randomness=randomness, out=out)
    return Encoded(words=words, clipped=0, shrunk=False, overflowed=False).loaded(device)


def steps_of(encoding: BoundedEncoding, words: NDArray[np.uint64]) -> NDArray[np.int32]:
    """The steps of an update that is not masked yet: [packed words, lanes], a copy."""
    steps = words[: encoding.packed_words].view(np.int32).copy()
    steps[: encoding.coordinates] -= encoding.offset
    return steps.reshape(-1, 64 // LANE_BITS)


def pads_of(encoding: BoundedEncoding, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The pads of a vector or of a sum: [projections], a view."""
    return words[encoding.packed_words :]


def summed_steps(encoding: BoundedEncoding, words: NDArray[np.uint64], survivors: int) -> NDArray[np.uint64]:
    """What the words of the survivors' steps add up to, modulo 2^64: [packed words], from their unmasked sum."""
    offset = survivors * encoding.offset
    summed: NDArray[np.uint64] = words[: encoding.packed_words] - np.uint64((offset << LANE_BITS) + offset)
    if encoding.coordinates % 2:  # the upper lane of the last word is empty
        summed[-1:] += np.uint64(offset << LANE_BITS)
    return summed


def decode_bounded(
    encoding: BoundedEncoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
    out_path: Path | None = None,
    threads: int = 1,
    sums: bool = False,
    release: Callable[[], None] = lambda: None,
) -> Decoded:
    """The mean over clients from their unmasked sum ([encoding.words], uint64), as `decoder.decode` does.

    `threads` and `sums` change nothing: one thread does the work, and a query has another encoding. Every client
    weighs 1, so `examples` of the result is the number of those that contributed; the others are left out of the mean.
    Raises PeerError for a sum that honest clients cannot make, NothingContributed if all have failed.
    """
    check_sum(encoding, words, survivors=survivors, base=base)
    assert base is not None  # noqa: S101 - `check_sum` has compared the layouts
    lanes = check_lanes(encoding, words[: encoding.packed_words], survivors)
    # Up to the bound a client may write anything there, so the count is one within the survivors.
    failures = min(max(round(float(total(encoding, lanes[-1:], survivors)[0]) / encoding.clip), 0), survivors)
    if failures == survivors:
        raise NothingContributed(failures, survivors)
    fill = partial(fill_mean, encoding, lanes, survivors, survivors - failures, base, release)
    return Decoded(
        examples=survivors - failures,
        failures=failures,
        lost_norm=0.0,
        metrics={},
        names=(),
        statistics=no_statistics(survivors, failures),
        state=filled(base.layout, fill, out_path),
    )


def _rounded(
    encoding: BoundedEncoding,
    blocks: Blocks,
    factor: float,
    *,
    failed: bool,
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None,
) -> NDArray[np.uint64]:
    """The words: `blocks` and the coordinate of failures behind them, rounded, and fresh pads."""
    words = check_out(encoding, out)
    words.fill(0)
    lanes = words[: encoding.packed_words].view(np.uint32)[: encoding.coordinates]
    round_coordinates(encoding, lanes, blocks, factor, failed=failed, randomness=randomness)
    lanes += np.uint32(encoding.offset)
    pads_of(encoding, words)[:] = np.frombuffer(randomness(encoding.projections * 8), np.uint64)
    return words
