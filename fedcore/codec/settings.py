"""The codec's settings, which an operator chooses, checked before any round starts."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pydantic import StrictFloat, StrictInt

from fedcore.errors import EncodingError
from fedcore.system.plain_json import NO_OTHER_KEYS

FIELD_BITS = (8, 10, 12, 16, 21, 32)
"""Widths for which floor(64 / b) fields fill a 64-bit word without, or almost without, waste."""

NARROW_BITS: Final = 12
"""Updates in fields of so many bits and fewer are rotated: few levels need a tight scale."""

LEAST_UPLOAD: Final = 2.0**-10
"""The least upload-fraction: less than a number for each thousand elements."""

MIN_SCALE = 2.0**-64
MAX_SCALE = 2.0**64
_MAX_EXAMPLES = 1 << 40
_MAX_METRICS = 1 << 16

Clipping = Literal["repeat", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSettings:
    """How updates become integers. Raises EncodingError, naming the setting, for a bad value.

    field_bits
        Width b of one field: 8, 10, 12, 16, 21 or 32 bits, which costs 1, 1.33, 1.6, 2, 2.67 or 4 bytes a parameter.
        A first exchange has 32-bit fields and costs 4.
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
    clipping
        What to do with an element that exceeds its scale: with "warn" it is cut off; with "repeat" and "fail" the
        client locks the sum.
    upload_fraction
        What an upload of large tensors takes of their size in float32, in every exchange; 0 for what `field_bits` make
        of it. If a field for each coordinate takes more, a random subset of the coordinates is sent.

    Uploads are compressed with an `upload_fraction`, and with fields of 12 bits and fewer: updates are then rotated.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    field_bits: StrictInt = 16
    w_max: StrictInt = 1 << 17
    metric_max: StrictFloat = 2.0**20
    max_metrics: StrictInt = 1024
    clip_norm: StrictFloat | None = None
    clipping: Clipping = "repeat"
    upload_fraction: StrictFloat = 0.0

    def __post_init__(self) -> None:
        if type(self.field_bits) is not int or self.field_bits not in FIELD_BITS:
            raise EncodingError(f"field-bits is {self.field_bits!r}; use 8, 10, 12, 16, 21 or 32")
        check_count("w-max", self.w_max, 1, _MAX_EXAMPLES)
        check_count("max-metrics", self.max_metrics, 0, _MAX_METRICS)
        _check_real("metric-max", self.metric_max, 2.0**-20, 2.0**40)
        if self.clip_norm is not None:
            _check_real("clip-norm", self.clip_norm, MIN_SCALE, MAX_SCALE)
        if self.clipping not in get_args(Clipping):
            raise EncodingError(f"clipping is {self.clipping!r}; use {', '.join(get_args(Clipping))}")
        if self.upload_fraction != 0:
            _check_real("upload-fraction", self.upload_fraction, LEAST_UPLOAD, 1.0)
        if self.compresses and self.clips:
            raise EncodingError(
                'clipping = "warn" cannot be used with upload-fraction, or with field-bits of 12 and fewer: what is '
                "cut off after a rotation is a part of every element"
            )

    @property
    def compresses(self) -> bool:
        """Whether updates are rotated, and a subset of the coordinates sent if all of them would take more."""
        return compresses(self.upload_fraction, self.field_bits)

    def sent_share(self, field_bits: int) -> float:
        """How many of the rotated coordinates are sent in fields of this width: the bytes are the same at any."""
        budget = self.upload_fraction or over_float32(self.field_bits)
        return min(1.0, budget / over_float32(field_bits))

    @property
    def clips(self) -> bool:
        """Whether elements that exceed their scale are cut off; else they lock the sum."""
        return self.clipping == "warn"

    def canonical(self) -> bytes:
        """Every setting, unambiguous."""
        counts = struct.pack(">IQI", self.field_bits, self.w_max, self.max_metrics)
        reals = struct.pack(">ddd", self.metric_max, self.clip_norm or -1.0, self.upload_fraction)
        return counts + reals + self.clipping.encode()


def compresses(upload_fraction: float, field_bits: int) -> bool:
    """Whether uploads with these settings are compressed."""
    return bool(upload_fraction) or field_bits <= NARROW_BITS


def over_float32(field_bits: int) -> float:
    """Bytes of a field over the four of a float32, with its part of what a word leaves unused."""
    return 2 / (64 // field_bits)


def check_count(name: str, value: object, low: int, high: int) -> None:
    """Raise EncodingError unless `value` is a whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise EncodingError(f"{name} is {value!r}; use a whole number from {low} to {high}")


def _check_real(name: str, value: object, low: float, high: float) -> None:
    # A NaN fails the comparison, an infinity the upper limit.
    if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
        raise EncodingError(f"{name} is {value!r}; use a number from {low:g} to {high:g}")
