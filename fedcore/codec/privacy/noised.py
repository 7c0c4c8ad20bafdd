"""One client's update, or its metrics, to noised words; and the sum of such words to an unweighted mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.bounded.grid import (
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
from fedcore.codec.decoder import Decoded, check_sum, filled
from fedcore.codec.encoder import Encoded, check_out
from fedcore.codec.gpu.device import DeviceVector
from fedcore.codec.metrics import MetricValue, flat_metrics
from fedcore.codec.privacy import BLOCK, NoiseSampler, noise_table
from fedcore.codec.privacy.parameters import PrivateEncoding
from fedcore.errors import NothingContributed, UsageError
from fedcore.state import ModelState

_SURE = 3.0
"""Standard deviations of its noise by which an estimate of the failures must exceed zero to count."""
_CERTAIN = 6.0
"""As many as all of the survivors must be to end the run: once in 10^9 exchanges the noise does that alone."""


def encode_noised(
    encoding: PrivateEncoding,
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
    """Clip, round to the grid until the norm is within its bound, and add this client's share of the noise.

    With a layout the update is encoded and `metrics` are left out: they have no noise. Without one the metrics are.
    `randomness(k)` returns k secret random bytes. Every client weighs the same, whatever its `examples`; one thread
    does the work, and words go to the `device` when they are done. Raises EncodingError, naming the tensor or metric,
    for what is not finite or does not match the layout, and UsageError for a `factor` other than 1.
    """
    if factor != 1:
        raise UsageError("an update with noise is not scaled")
    if encoding.layout is None:
        _, values = flat_metrics(encoding.settings, metrics, expected=encoding.metrics)
        vector = _bounded(encoding, values)
        blocks, shrink = _one_block(vector), 1.0
    else:
        blocks = update_blocks(encoding, encoding.layout, base, local)
        shrink = clip_factor(encoding, blocks)
    words = _noised(encoding, blocks, shrink, failed=False, randomness=randomness, out=out)
    return Encoded(words=words, clipped=0, shrunk=shrink < 1, overflowed=False).loaded(device)


def encode_nothing_noised(
    encoding: PrivateEncoding,
    *,
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None = None,
    device: DeviceVector | None = None,
) -> Encoded:
    """What a client sends that contributes nothing: zeros, the bound in the coordinate of failures, and its noise."""
    blocks = partial(no_update, encoding)
    words = _noised(encoding, blocks, 1.0, failed=True, randomness=randomness, out=out)
    return Encoded(words=words, clipped=0, shrunk=False, overflowed=False).loaded(device)


def decode_noised(
    encoding: PrivateEncoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
    out_path: Path | None = None,
    threads: int = 1,
    sums: bool = False,
    release: Callable[[], None] = lambda: None,
) -> Decoded:
    """The mean over `survivors` clients from their unmasked sum ([encoding.words], uint64), as `decoder.decode` does.

    `threads` and `sums` change nothing: one thread does the work, and a query has no noise (`query-without-noise`).
    Every client weighs 1, so `examples` of the result is the number of survivors, and who contributed nothing counts
    as an update of zero: the number of failures is an estimate, with which the mean is not corrected. Raises PeerError
    for a sum that honest clients cannot make, NothingContributed if the noise leaves no doubt that all have failed.
    """
    check_sum(encoding, words, survivors=survivors, base=base)
    lanes = check_lanes(encoding, words, survivors)
    failures, certain = _estimated_failures(encoding, lanes, survivors)
    if failures == survivors and certain:
        raise NothingContributed(failures, survivors, estimated=True)
    state, metrics = None, {}
    if base is not None:
        state = filled(base.layout, partial(fill_mean, encoding, lanes, survivors, survivors, base, release), out_path)
    else:
        metrics = _decode_metrics(encoding, lanes, survivors)
    return Decoded(
        examples=survivors,
        failures=failures,
        lost_norm=0.0,
        metrics=metrics,
        names=encoding.metrics,
        statistics=no_statistics(survivors),
        state=state,
    )


# --- encoding -------------------------------------------------------------------------------------------------------


def _noised(
    encoding: PrivateEncoding,
    blocks: Blocks,
    shrink: float,
    *,
    failed: bool,
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None,
) -> NDArray[np.uint64]:
    """The words: `blocks` and the coordinate of failures behind them, rounded, with this client's noise."""
    words = check_out(encoding, out)
    words.fill(0)
    lanes = words.view(np.uint32)[: encoding.coordinates]
    round_coordinates(encoding, lanes, blocks, shrink, failed=failed, randomness=randomness)
    _add_noise(encoding, lanes, randomness)
    return words


def _bounded(encoding: PrivateEncoding, values: Sequence[Fraction]) -> NDArray[np.float64]:
    """Metrics within their bound, over sqrt(k): a vector ([k]) whose norm is at most the bound."""
    vector = np.array([float(value) for value in values], np.float64)
    np.clip(vector, -encoding.clip, encoding.clip, out=vector)
    vector /= math.sqrt(max(len(values), 1))
    return vector


def _one_block(vector: NDArray[np.float64]) -> Blocks:
    return lambda: iter((vector,))


def _add_noise(encoding: PrivateEncoding, lanes: NDArray[np.uint32], randomness: Callable[[int], bytes]) -> None:
    """Add this client's share and the offset, in place; both fit, so that nothing wraps."""
    release = encoding.release
    sampler = NoiseSampler(noise_table(release.mechanism, release.variance), randomness)
    signed = lanes.view(np.int32)
    for start in range(0, lanes.size, BLOCK):
        part = signed[start : start + BLOCK]
        noise = sampler.draw(part.size)
        noise += part
        noise += encoding.offset
        lanes[start : start + BLOCK] = noise


# --- decoding -------------------------------------------------------------------------------------------------------


def _estimated_failures(encoding: PrivateEncoding, lanes: NDArray[np.uint32], survivors: int) -> tuple[int, bool]:
    """How many contributed nothing, to the nearest whole number, and whether the noise leaves no doubt that all did.

    0 if the noise alone may account for it; so always if it is larger than all of the survivors would be.
    """
    release = encoding.release
    estimate = float(total(encoding, lanes[-1:], survivors)[0]) / encoding.clip
    deviation = math.sqrt(survivors * release.variance) / release.scale
    counts = max(_SURE * deviation, 0.5) < min(estimate, survivors)
    return min(round(estimate), survivors) if counts else 0, _CERTAIN * deviation < survivors


def _decode_metrics(
    encoding: PrivateEncoding, lanes: NDArray[np.uint32], survivors: int
) -> dict[str, float | list[float]]:
    """Noised means over the clients, each with the same weight."""
    names = encoding.metrics
    counts = [1 if length is None else length for _, length in names]
    values = total(encoding, lanes, survivors) / survivors * math.sqrt(max(sum(counts), 1))
    metrics: dict[str, float | list[float]] = {}
    start = 0
    for (name, length), count in zip(names, counts, strict=True):
        part = values[start : start + count].tolist()
        metrics[name] = part[0] if length is None else part
        start += count
    return metrics
