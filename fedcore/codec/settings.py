"""What an operator chooses about the encoding, checked before any round starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import StrictFloat, StrictInt

from fedcore.errors import EncodingError
from fedcore.plain_json import NO_OTHER_KEYS

FIELD_BITS = (16, 21, 32)
"""Widths for which floor(64 / b) fields fill a 64-bit word without, or almost without, waste."""

MIN_SCALE = 2.0**-64
MAX_SCALE = 2.0**64
_MAX_EXAMPLES = 1 << 40
_MAX_METRICS = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSettings:
    """How updates become integers. Raises EncodingError, naming the setting, for a bad value.

    field_bits
        Width b of one field: 16, 21 or 32 bits, which costs 2, 2.67 or 4 bytes a parameter.
    w_max
        Most examples that one client may report for one round. A client's weight is
        examples / w_max; close to the largest real count is best for precision.
    metric_max
        Largest absolute value of a metric.
    max_metrics
        Number of values that the metrics of one reply may hold together.
    clip_norm
        L2 norm to which a client shrinks its whole update (all floating point tensors together),
        or None for no such clipping.
    first_scale
        L-infinity bound on weight * delta in the first round, when no magnitudes are known.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    field_bits: StrictInt = 16
    w_max: StrictInt = 1 << 17
    metric_max: StrictFloat = 2.0**20
    max_metrics: StrictInt = 32
    clip_norm: StrictFloat | None = None
    first_scale: StrictFloat = 8.0

    def __post_init__(self) -> None:
        if type(self.field_bits) is not int or self.field_bits not in FIELD_BITS:
            raise EncodingError(f"field_bits is {self.field_bits!r}; use 16, 21 or 32")
        _check_count("w_max", self.w_max, 1, _MAX_EXAMPLES)
        _check_count("max_metrics", self.max_metrics, 0, _MAX_METRICS)
        _check_real("metric_max", self.metric_max, 2.0**-20, 2.0**40)
        _check_real("first_scale", self.first_scale, MIN_SCALE, MAX_SCALE)
        if self.clip_norm is not None:
            _check_real("clip_norm", self.clip_norm, MIN_SCALE, MAX_SCALE)


def _check_count(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise EncodingError(f"{name} is {value!r}; use a whole number from {low} to {high}")


def _check_real(name: str, value: object, low: float, high: float) -> None:
    # A NaN fails the comparison, an infinity the upper limit.
    if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
        raise EncodingError(f"{name} is {value!r}; use a number from {low:g} to {high:g}")


def carry_bits(n_max: int) -> int:
    """ceil(log2(n_max)): the bits by which a sum of n_max fields may grow."""
    return (n_max - 1).bit_length()


def metric_fraction_bits(settings: CodecSettings, n_max: int) -> int:
    """Bits after the point of a metric's fixed-point word, such that no sum can wrap."""
    largest = n_max * settings.w_max * math.ceil(settings.metric_max)
    return 62 - largest.bit_length()
