"""Metrics in the sum: each value times the client's examples, in 64-bit fixed point.

Slots are filled in the order of the sorted names, lists element by element. If the names are known there are just as
many slots; else the rest stays zero.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from fractions import Fraction

from fedcore.codec.encoding import Encoding
from fedcore.codec.names import MetricName, check_names, names_text
from fedcore.codec.settings import CodecSettings
from fedcore.errors import EncodingError, PeerError

MetricValue = float | Sequence[float]

_WORD = 1 << 64
_HALF = 1 << 63


def encode_metrics(
    encoding: Encoding, metrics: Mapping[str, MetricValue], examples: int
) -> tuple[tuple[MetricName, ...], list[int]]:
    """Names in slot order, and the words of the used slots (two's complement).

    Raises EncodingError that names the metric for a value that is no finite number, is larger than
    `metric-max`, or has no slot left; and one that names both for other metrics than those of the encoding.
    """
    names, values = flat_metrics(encoding.settings, metrics, expected=encoding.metrics)
    unit = examples << encoding.metric_fraction_bits
    return names, [round(value * unit) % _WORD for value in values]


def flat_metrics(
    settings: CodecSettings, metrics: Mapping[str, MetricValue], *, expected: tuple[MetricName, ...] | None
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
    check_names(names, settings.max_metrics)
    if expected is not None and tuple(names) != expected:
        raise EncodingError(
            f"the app reports the metrics {names_text(names)}, the exchange is for {names_text(expected)}; the "
            "ClientApp must return the same metrics with the same lengths at every client and each time",
            check="other-metrics",
        )
    return tuple(names), values


def decode_metrics(
    encoding: Encoding,
    names: Sequence[MetricName],
    words: Sequence[int],
    *,
    survivors: int,
    examples: int,
    sums: bool = False,
) -> dict[str, float | list[float]]:
    """Means over the `survivors` that contributed, weighted by examples, from the sums in all slots.

    With `sums` what was added up itself, each value times the examples.

    Raises PeerError when a sum is more than the survivors can have sent, or an unused slot is not
    zero.
    """
    unit = examples << encoding.metric_fraction_bits
    # Every survivor rounds to nearest, so may exceed the limit by half a unit.
    limit = math.ceil(encoding.settings.metric_max) * unit + survivors
    totals = [word - _WORD if word >= _HALF else word for word in words]
    metrics: dict[str, float | list[float]] = {}
    start = 0
    for name, length in names:
        count = 1 if length is None else length
        part = totals[start : start + count]
        if any(abs(total) > limit for total in part):
            raise PeerError(
                f"the sum of metric {name!r} is out of range: a client sent a malformed reply", check="malformed-update"
            )
        means = [float(Fraction(total, 1 << encoding.metric_fraction_bits if sums else unit)) for total in part]
        metrics[name] = means[0] if length is None else means
        start += count
    if any(totals[start:]):
        raise PeerError("the survivors report more metrics than they named", check="metrics-beyond-names")
    return metrics


def lost_word(encoding: Encoding, share: float, examples: int) -> int:
    """One client's word in `lost`: the part of its update's norm that was cut off, times its examples."""
    return math.ceil(Fraction(share) * (examples << encoding.metric_fraction_bits))


def lost_share(encoding: Encoding, words: Sequence[int], *, contributors: int, examples: int) -> float:
    """The mean from the sum of such words; 0 if the encoding has none. Raises PeerError for more than all."""
    unit = examples << encoding.metric_fraction_bits
    if sum(words) > unit + contributors:
        raise PeerError("more was cut off than there was: a client sent a malformed update", check="malformed-update")
    return min(sum(words) / unit, 1.0)


def _number(settings: CodecSettings, name: str, value: object) -> Fraction:
    """An exact fraction; the float's own digits, not those of its decimal text."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise EncodingError(
            f"metric {name!r} is a {type(value).__name__}; report a number or a list of numbers", check="metric-type"
        )
    try:
        exact = float(value)
    except OverflowError:
        exact = math.inf
    if not math.isfinite(exact):
        raise EncodingError(
            f"metric {name!r} is {exact}; report a finite number or leave it out", check="metric-not-finite"
        )
    if abs(exact) > settings.metric_max:
        raise EncodingError(
            f"metric {name!r} is {exact:g}, the limit is {settings.metric_max:g}; "
            "raise metric-max or report it in another unit",
            check="metric-max",
        )
    return Fraction(exact)
