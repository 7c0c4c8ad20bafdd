"""Metrics in the sum: each value times the client's examples, in 64-bit fixed point.

Slots are filled in the order of the sorted names, lists element by element; the rest stays zero.
"""

from __future__ import annotations

import hashlib
import math
import numbers
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction

from fedcore.codec.encoding import CodecSettings, Encoding
from fedcore.errors import EncodingError, PeerError

MetricName = tuple[str, int | None]
"""Name of a metric, and the length of its list; None for a single number."""

MetricValue = float | Sequence[float]

_WORD = 1 << 64
_HALF = 1 << 63


def encode_metrics(
    encoding: Encoding, metrics: Mapping[str, MetricValue], examples: int
) -> tuple[tuple[MetricName, ...], list[int]]:
    """Names in slot order, and the words of the used slots (two's complement).

    Raises EncodingError that names the metric for a value that is no finite number, is larger than
    `metric_max`, or has no slot left.
    """
    names, values = flat_metrics(encoding.settings, metrics)
    unit = examples << encoding.metric_fraction_bits
    return names, [round(value * unit) % _WORD for value in values]


def flat_metrics(
    settings: CodecSettings, metrics: Mapping[str, MetricValue]
) -> tuple[tuple[MetricName, ...], list[Fraction]]:
    """Names in slot order, and the values in the used slots. Raises EncodingError as `encode_metrics` does."""
    names: list[MetricName] = []
    values: list[Fraction] = []
    for name in sorted(metrics):
        value = metrics[name]
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            names.append((name, len(value)))
            values.extend(_number(settings, name, item) for item in value)
        else:
            names.append((name, None))
            values.append(_number(settings, name, value))
    limit = settings.max_metrics
    if len(values) > limit:
        raise EncodingError(
            f"the reply holds {len(values)} metric values, {limit} are allowed; raise max_metrics or report fewer"
        )
    return tuple(names), values


def decode_metrics(
    encoding: Encoding,
    names: Sequence[MetricName],
    words: Sequence[int],
    *,
    survivors: int,
    examples: int,
) -> dict[str, float | list[float]]:
    """Means over the survivors, weighted by examples, from the sums in all slots.

    Raises PeerError when a sum is more than the survivors can have sent, or an unused slot is not
    zero.
    """
    unit = examples << encoding.metric_fraction_bits
    # Every survivor rounds to nearest, so may exceed the limit by half a unit.
    limit = math.ceil(encoding.settings.metric_max) * unit + survivors
    sums = [word - _WORD if word >= _HALF else word for word in words]
    metrics: dict[str, float | list[float]] = {}
    start = 0
    for name, length in names:
        count = 1 if length is None else length
        part = sums[start : start + count]
        if any(abs(total) > limit for total in part):
            raise PeerError(f"the sum of metric {name!r} is out of range: a client sent a malformed reply")
        means = [float(Fraction(total, unit)) for total in part]
        metrics[name] = means[0] if length is None else means
        start += count
    if any(sums[start:]):
        raise PeerError("the survivors report more metrics than they named")
    return metrics


def check_names(settings: CodecSettings, names: Sequence[MetricName]) -> None:
    """Raise PeerError unless `names` are sorted, unique and fit the slots."""
    plain = [name for name, _ in names]
    lengths = [1 if length is None else length for _, length in names]
    if plain != sorted(set(plain)) or any(length < 0 for length in lengths):
        raise PeerError("the names of the metrics are not sorted and unique")
    if sum(lengths) > settings.max_metrics:
        raise PeerError("the names of the metrics need more slots than there are")


def names_tag(names: Sequence[MetricName]) -> int:
    """64 bits of a hash of names and lengths.

    Every client adds it to the sum, which must then hold a known multiple: a sum over different
    metrics, or one with a mask left in it, is noticed.
    """
    hasher = hashlib.sha256(b"fedcore/codec/metrics/v1")
    for name, length in names:
        text = name.encode()
        hasher.update(struct.pack("<Qq", len(text), -1 if length is None else length) + text)
    return int.from_bytes(hasher.digest()[:8], "little")


def _number(settings: CodecSettings, name: str, value: object) -> Fraction:
    """An exact fraction; the float's own digits, not those of its decimal text."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise EncodingError(f"metric {name!r} is a {type(value).__name__}; report a number or a list of numbers")
    try:
        exact = float(value)
    except OverflowError:
        exact = math.inf
    if not math.isfinite(exact):
        raise EncodingError(f"metric {name!r} is {exact}; report a finite number or leave it out")
    if abs(exact) > settings.metric_max:
        raise EncodingError(
            f"metric {name!r} is {exact:g}, the limit is {settings.metric_max:g}; "
            "raise metric_max or report it in another unit"
        )
    return Fraction(exact)
