"""Metrics in the sum: each value times the client's examples, in fixed point of two 64-bit words.

Slots are filled in the order of the sorted names, lists element by element. If the names are known there are just as
many slots; else the rest stays zero, and only the first MOST_DIGITS slots have a second word.

The second word has digits of what is less than 2^20 units of the first, of which a metric of 1e-12 still has six. An
exact sum of all digits would tell single values: the low digits of float64's k / n tell k and n, and those of a large
value are zero where a small one has its own. So larger values are rounded to whole units, smaller ones moved at random
by up to 2^-22 of themselves, and the digits of the larger ones hold noise that the sum is rounded by.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import zip_longest

from fedcore.codec.encoding import Encoding
from fedcore.codec.names import MetricName, check_names, names_text
from fedcore.codec.settings import CodecSettings
from fedcore.errors import EncodingError, PeerError

MetricValue = float | Sequence[float]

_WORD = 1 << 64
_HALF = 1 << 63
_WHOLE_BITS = 20
"""A value of so many bits in units is rounded to whole ones: by 2^-21 of itself at most."""
_BLUR_BITS = 22
_RANDOM_BYTES = 16


def encode_metrics(
    encoding: Encoding, metrics: Mapping[str, MetricValue], examples: int, *, randomness: Callable[[int], bytes]
) -> tuple[tuple[MetricName, ...], list[int], list[int]]:
    """Names in slot order, and the words of the used slots: rounded down (two's complement), and what is left.

    Raises EncodingError that names the metric for a value that is no finite number, is larger than
    `metric-max`, or has no slot left; and one that names both for other metrics than those of the encoding.

    Args:
        randomness: `randomness(k)` returns k secret random bytes.
    """
    names, values = flat_metrics(encoding.settings, metrics, expected=encoding.metrics)
    unit = metric_unit(encoding, examples)
    totals = [round(value * unit) for value in values]
    section, bits = encoding.sections["digits"], encoding.metric_digit_bits
    with_digits = section.stop - section.start
    totals = [
        *(_blurred(encoding, total, randomness) for total in totals[:with_digits]),
        *(_rounded(encoding, total) for total in totals[with_digits:]),
    ]
    digits = [total & (1 << bits) - 1 for total in totals[:with_digits]]
    return names, [(total >> bits) % _WORD for total in totals], digits


def _blurred(encoding: Encoding, total: int, randomness: Callable[[int], bytes]) -> int:
    """The same with digits that tell no more than they have to."""
    if _is_whole(encoding, total):
        total, most = _rounded(encoding, total), (1 << encoding.metric_digit_bits) // (2 * encoding.n_max)
    else:
        most = abs(total) >> _BLUR_BITS
    drawn = int.from_bytes(randomness(_RANDOM_BYTES), "little")
    # Less than half a unit for all clients together.
    return total + drawn % (2 * most - 1) - (most - 1) if most else total


def _is_whole(encoding: Encoding, total: int) -> bool:
    return abs(total) >> encoding.metric_digit_bits + _WHOLE_BITS > 0


def _rounded(encoding: Encoding, total: int) -> int:
    """To whole units."""
    bits = encoding.metric_digit_bits
    return (2 * total + (1 << bits) >> bits + 1) << bits


def metric_unit(encoding: Encoding, examples: int) -> int:
    """What a metric of 1 comes to over so many examples, both words together."""
    return examples << encoding.metric_fraction_bits + encoding.metric_digit_bits


def join_metrics(encoding: Encoding, words: Sequence[int], digits: Sequence[int]) -> list[int]:
    """What two sections of such words stand for together, of which the second may be shorter."""
    signed = (word - _WORD if word >= _HALF else word for word in words)
    bits = encoding.metric_digit_bits
    totals = [(word << bits) + rest for word, rest in zip_longest(signed, digits, fillvalue=0)]
    return [_rounded(encoding, total) if _is_whole(encoding, total) else total for total in totals]


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
    totals: Sequence[int],
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
    unit = metric_unit(encoding, examples)
    # Every survivor rounds to nearest, so may exceed the limit by half a unit.
    limit = math.ceil(encoding.settings.metric_max) * unit + survivors
    metrics: dict[str, float | list[float]] = {}
    start = 0
    for name, length in names:
        count = 1 if length is None else length
        part = totals[start : start + count]
        if any(abs(total) > limit for total in part):
            raise PeerError(
                f"the sum of metric {name!r} is out of range: a client sent a malformed reply", check="malformed-update"
            )
        means = [float(Fraction(total, metric_unit(encoding, 1) if sums else unit)) for total in part]
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
