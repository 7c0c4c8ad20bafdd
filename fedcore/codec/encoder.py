"""One client's update to words."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.encoding import Encoding
from fedcore.codec.integers import encode_integers
from fedcore.codec.metrics import MetricName, MetricValue, encode_metrics, names_tag
from fedcore.codec.packing import pack
from fedcore.codec.rounding import BLOCK, StochasticRounder
from fedcore.codec.statistics import power_word, size_word
from fedcore.errors import EncodingError, UsageError
from fedcore.state import ModelState, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """An encoded update, still in clear: `words` ([encoding.words], uint64) must be masked.

    clipped
        Elements of floating point tensors that exceeded their scale.
    shrunk
        Whether the L2 clip shrank the update.
    metric_names
        What the metric slots mean; not secret, the decoder needs it.
    """

    words: NDArray[np.uint64] = field(repr=False)
    clipped: int
    shrunk: bool
    metric_names: tuple[MetricName, ...]


def encode(
    encoding: Encoding,
    *,
    base: ModelState | None,
    local: ModelState | None,
    examples: int,
    metrics: Mapping[str, MetricValue],
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None = None,
) -> Encoded:
    """Encode local - base, weighted by examples, and metrics; both states None without a layout.

    `randomness(k)` returns k secret random bytes. `out` ([encoding.words], uint64, contiguous)
    takes the words where it is given; after an error its content is meaningless.

    Raises EncodingError, naming the tensor or metric, for NaN and infinity, for tensors that do not
    match the layout, and for examples or metrics out of range.
    """
    count = _check_examples(encoding, examples)
    words = _zeroed(encoding, out)
    sections = encoding.sections
    names, metric_words = encode_metrics(encoding, metrics, count)
    words[sections["tag"]] = names_tag(names)
    words[sections["examples"]] = count
    first = sections["metrics"].start
    words[first : first + len(metric_words)] = metric_words
    clipped, shrunk = 0, False
    if encoding.layout is None:
        if base is not None or local is not None:
            raise UsageError("this encoding carries metrics only; pass no model states")
    else:
        if base is None or local is None:
            raise UsageError("this encoding carries an update; pass the global and the local state")
        encoding.layout.check_same(base.layout, what="the global model")
        encoding.layout.check_same(local.layout, what="the trained model")
        shrink = _shrink_factor(encoding, base, local)
        shrunk = shrink < 1
        words[sections["shrunk"]] = int(shrunk)
        weight = shrink * count / encoding.settings.w_max
        clipped = _encode_floats(encoding, words, base, local, weight, randomness)
        encode_integers(encoding, words[sections["integers"]], base=base, local=local, examples=count)
    return Encoded(words=words, clipped=clipped, shrunk=shrunk, metric_names=names)


def _check_examples(encoding: Encoding, examples: object) -> int:
    limit = encoding.settings.w_max
    if isinstance(examples, bool) or not isinstance(examples, numbers.Integral):
        raise EncodingError(f"the number of examples is {examples!r}; report a whole number")
    count = int(examples)
    if not 0 <= count <= limit:
        raise EncodingError(f"{count} examples are outside 0 to {limit}; raise w_max or train on fewer a round")
    return count


def _zeroed(encoding: Encoding, out: NDArray[np.uint64] | None) -> NDArray[np.uint64]:
    if out is None:
        return np.zeros(encoding.words, np.uint64)
    if out.dtype != np.uint64 or out.shape != (encoding.words,) or not out.flags.c_contiguous:
        raise UsageError(f"out must be a contiguous uint64 array of {encoding.words} words")
    out.fill(0)
    return out


def _encode_floats(
    encoding: Encoding,
    words: NDArray[np.uint64],
    base: ModelState,
    local: ModelState,
    weight: float,
    randomness: Callable[[int], bytes],
) -> int:
    """Fill the packed fields and their statistics; returns the number of clipped elements."""
    sections = encoding.sections
    packed = words[sections["packed"]]
    rounder = StochasticRounder(field_bits=encoding.field_bits, levels=encoding.levels, randomness=randomness)
    place = 0
    total = 0
    for index, spec in enumerate(encoding.floats):
        factor = weight * encoding.levels / encoding.scales[index]
        largest, clipped = 0.0, 0
        for delta in float_deltas(spec, base, local):
            fields, summary = rounder.round(delta, factor)
            pack(packed, encoding.field_bits, place, fields)
            place += delta.size
            largest = max(largest, summary.largest)
            clipped += summary.clipped
        ratio = largest / encoding.levels
        words[sections["sizes"].start + index] = size_word(ratio, encoding.n_max)
        words[sections["powers"].start + index] = power_word(ratio, encoding.n_max)
        words[sections["clipped"].start + index] = clipped
        total += clipped
    return total


def _shrink_factor(encoding: Encoding, base: ModelState, local: ModelState) -> float:
    """min(1, clip_norm / norm), the norm over all floating point tensors together."""
    clip_norm = encoding.settings.clip_norm
    if clip_norm is None:
        return 1.0
    squares = 0.0
    wide = np.empty(BLOCK, np.float64)
    for spec in encoding.floats:
        for delta in float_deltas(spec, base, local):
            block = wide[: delta.size]
            np.copyto(block, delta)
            np.square(block, out=block)
            squares += float(block.sum())
    norm = math.sqrt(squares)
    return clip_norm / norm if norm > clip_norm else 1.0


def float_deltas(spec: TensorSpec, base: ModelState, local: ModelState) -> Iterator[NDArray[np.float32]]:
    """The update, local - base, as float32, block by block ([m], m <= BLOCK, overwritten by the next block).

    The difference of float64 tensors is taken in float64. Raises EncodingError that names the
    tensor when it is not finite.
    """
    old = np.empty(min(BLOCK, spec.size), np.float32)
    new = np.empty_like(old)
    for start in range(0, spec.size, BLOCK):
        stop = min(start + BLOCK, spec.size)
        delta = new[: stop - start]
        with np.errstate(over="ignore", invalid="ignore"):
            if spec.dtype == "BF16":
                local.float32(spec.name, start, stop, out=new)
                base.float32(spec.name, start, stop, out=old)
                delta -= old[: stop - start]
            else:
                _subtract(local[spec.name], base[spec.name], start, stop, delta)
        if not (math.isfinite(delta.max()) and math.isfinite(delta.min())):
            _refuse_not_finite(spec, base, local)
        yield delta


def _subtract(local: NDArray[Any], base: NDArray[Any], start: int, stop: int, out: NDArray[np.float32]) -> None:
    """Write (local - base)[start:stop] of the flattened tensors to `out`, computed in float32 or wider."""
    wide = np.promote_types(local.dtype, np.float32)
    np.subtract(local.reshape(-1)[start:stop], base.reshape(-1)[start:stop], out=out, dtype=wide, casting="same_kind")


def _refuse_not_finite(spec: TensorSpec, base: ModelState, local: ModelState) -> None:
    """Say which side is at fault."""
    if not np.isfinite(base.float32(spec.name)).all():
        raise EncodingError(f"tensor {spec.name!r} of the global model holds NaN or infinity; start from another model")
    raise EncodingError(
        f"tensor {spec.name!r} holds NaN or infinity after training, or changed by more than float32 holds; "
        "lower the learning rate, clip gradients, or look for bad input"
    )
