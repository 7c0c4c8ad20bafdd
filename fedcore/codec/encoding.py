"""The public parameters of one exchange, identical on the server and on every client.

A vector is `[packed fields | wide words]`, all of them unsigned 64-bit words that add modulo 2^64:

    packed    one b-bit field for each element of each floating point tensor, floor(64 / b) to a
              word, the first field in the lowest bits; zero padding in the last word only
    tag       a hash of the metrics' names, so that sums over different metrics are noticed
    examples  the number of training (or test) examples
    shrunk    1 where the L2 clip shrank the update
    sizes     for each floating point tensor: its largest |w * delta| (sum, to bound the mean),
    powers    the fourth power of that (to bound the largest client), see statistics.py,
    clipped   and how many of its elements exceeded the scale
    integers  for each element of each integer tensor: (local - global) * examples
    metrics   each metric * examples, in fixed point; unused slots are zero

A field of b bits holds a value of q = b - ceil(log2 n_max) bits, so a sum of n_max fields never
carries into its neighbour. See PROTOCOL.md, "Encoding".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import GetPydanticSchema, PlainSerializer, StrictFloat, StrictInt
from pydantic_core.core_schema import no_info_after_validator_function

from fedcore.codec.settings import (
    FIELD_BITS,
    MAX_SCALE,
    MIN_SCALE,
    CodecSettings,
    carry_bits,
    metric_fraction_bits,
)
from fedcore.errors import EncodingError
from fedcore.plain_json import NO_OTHER_KEYS
from fedcore.state import Layout, TensorSpec

_MIN_VALUE_BITS = 4
_MIN_METRIC_FRACTION = 8
_MAX_CLIENTS = 1 << 28
_DOMAIN = b"fedcore/codec/encoding/v1"

_Rows = list[tuple[str, str, tuple[StrictInt, ...]]]


def _layout(rows: _Rows) -> Layout:
    return Layout(specs=tuple(TensorSpec(name=name, dtype=dtype, shape=shape) for name, dtype, shape in rows))


def _rows(layout: Layout) -> _Rows:
    return [(spec.name, spec.dtype, spec.shape) for spec in layout.specs]


PlainLayout = Annotated[
    Layout,
    GetPydanticSchema(lambda _, form: no_info_after_validator_function(_layout, form(_Rows))),
    PlainSerializer(_rows),
]
"""A layout; in JSON a list with the name, dtype and shape of each tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How one exchange turns updates into words and back.

    `layout` is None where only metrics are exchanged (evaluation). `scales` has one entry for each
    floating point tensor: the bound on |w * delta|, with w = examples / w_max.

    Raises EncodingError for parameters whose worst case could wrap or that leave too few bits.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    settings: CodecSettings
    layout: PlainLayout | None
    n_max: StrictInt
    field_bits: StrictInt
    scales: tuple[StrictFloat, ...]

    def __post_init__(self) -> None:
        if type(self.n_max) is not int or not 1 <= self.n_max <= _MAX_CLIENTS:
            raise EncodingError(f"n_max is {self.n_max!r}; use a whole number from 1 to {_MAX_CLIENTS}")
        if type(self.field_bits) is not int or self.field_bits not in FIELD_BITS:
            raise EncodingError(f"field_bits is {self.field_bits!r}; use 16, 21 or 32")
        # The settings' width is checked too: a first round with wide fields must not hide
        # that every later round will be refused.
        for bits in (self.settings.field_bits, self.field_bits):
            if bits - carry_bits(self.n_max) < _MIN_VALUE_BITS:
                raise EncodingError(
                    f"a sum of {self.n_max} clients leaves fewer than {_MIN_VALUE_BITS} bits of a "
                    f"{bits}-bit field for a value; raise field_bits or lower the cohort size"
                )
        if self.metric_fraction_bits < _MIN_METRIC_FRACTION:
            raise EncodingError(
                f"the metrics of {self.n_max} clients could overflow their 64-bit sum; "
                "lower metric_max, w_max or the cohort size"
            )
        if len(self.scales) != len(self.floats):
            raise EncodingError(f"there are {len(self.scales)} scales for {len(self.floats)} floating point tensors")
        for spec, scale in zip(self.floats, self.scales, strict=True):
            if type(scale) is not float or not MIN_SCALE <= scale <= MAX_SCALE:
                raise EncodingError(f"the scale of tensor {spec.name!r} is out of range")

    @property
    def floats(self) -> tuple[TensorSpec, ...]:
        """The floating point tensors, in order; their elements are the packed fields."""
        return self.layout.floats if self.layout else ()

    @property
    def integers(self) -> tuple[TensorSpec, ...]:
        """The integer and boolean tensors, in order."""
        return self.layout.integers if self.layout else ()

    @property
    def value_bits(self) -> int:
        """q, the bits of one client's value in a field."""
        return self.field_bits - carry_bits(self.n_max)

    @property
    def levels(self) -> int:
        """L = 2^(q-1) - 1: a value is a whole number from -L to L, sent as 0 to 2L.

        The range is symmetric so that zero is a level: what did not change is sent exactly.
        """
        return (1 << (self.value_bits - 1)) - 1

    @property
    def metric_fraction_bits(self) -> int:
        """Bits after the point in a metric's word."""
        return metric_fraction_bits(self.settings, self.n_max)

    @property
    def fields(self) -> int:
        """Number of packed fields."""
        return sum(spec.size for spec in self.floats)

    @property
    def packed_words(self) -> int:
        """Words that hold the fields."""
        return -(-self.fields // (64 // self.field_bits))

    @property
    def sections(self) -> dict[str, slice]:
        """Where each part of the vector lies, by the names in the module's text, in order."""
        sizes = {
            "packed": self.packed_words,
            "tag": 1,
            "examples": 1,
            "shrunk": 1,
            "sizes": len(self.floats),
            "powers": len(self.floats),
            "clipped": len(self.floats),
            "integers": sum(spec.size for spec in self.integers),
            "metrics": self.settings.max_metrics,
        }
        sections = {}
        start = 0
        for name, size in sizes.items():
            sections[name] = slice(start, start + size)
            start += size
        return sections

    @property
    def words(self) -> int:
        """Length of the vector in 64-bit words."""
        return int(self.sections["metrics"].stop)

    def step(self, index: int) -> float:
        """Distance between two levels of floating point tensor `index`, in units of w * delta."""
        return self.scales[index] / self.levels

    def canonical(self) -> bytes:
        """SHA-256 over every parameter, unambiguous; it goes into the protocol's ctx."""
        settings = self.settings
        clip_norm = -1.0 if settings.clip_norm is None else settings.clip_norm
        parts = [
            struct.pack(">IQII", settings.field_bits, settings.w_max, settings.max_metrics, self.n_max),
            struct.pack(">ddd", settings.metric_max, clip_norm, settings.first_scale),
            struct.pack(">I", self.field_bits),
            self.layout.digest() if self.layout is not None else b"",
            struct.pack(f">{len(self.scales)}d", *self.scales),
        ]
        return hash_of_parts(_DOMAIN, parts)


def hash_of_parts(domain: bytes, parts: Iterable[bytes]) -> bytes:
    """SHA-256 over a domain and parts with their lengths, so that no two lists of parts hash alike; 32 bytes."""
    hasher = hashlib.sha256(domain)
    for part in parts:
        hasher.update(struct.pack(">Q", len(part)) + part)
    return hasher.digest()
