"""The public parameters of one exchange, identical on the server and on every client.

`Encoding` adds to what an operator chooses (`settings`) what one exchange needs to know. A vector is
`[packed fields | wide words]`, all of them unsigned 64-bit words that add modulo 2^64:

    packed    one b-bit field for each element of each large floating point tensor, floor(64 / b) to
              a word, the first field in the lowest bits; zero padding in the last word only. If
              uploads are compressed, one for each rotated coordinate that is sent, see rotation.py
    small     for each element of all floating point tensors below 1,024 elements the whole steps, as fields of 64 bits;
              then, for each of them, what is left of a step, as fields of 32 bits
    failed    1 if the client contributes nothing: its fields are zero updates, all other words but the keys zero,
              and then a mask of its own covers all but this word and the keys
    large     1 where the update exceeds the scales and is not to be clipped: then a mask that nobody can take off
              covers all but the words from `failed` to `peaks`, and the keys
    peaks     for each scale: how large the largest |w * delta| under it is, so that the sum tells that of the largest
              client alone, see ladder.py
    clipped   if updates are clipped: for each scale how many elements exceeded it
    examples  the number of training (or test) examples
    shrunk    1 if the L2 clip shrank the update
    lost      if updates are clipped: the part of the update's norm that was cut off * examples, in fixed point
    integers  for each element of each integer tensor: (local - global) * examples
    metrics   each metric * examples, in fixed point, rounded down; unused slots are zero
    digits    for each of them what is left of a unit; none if w-max is 1. If the names of the metrics are not known
              yet, and so their number, for the first MOST_DIGITS of them
    names     if the names of the metrics are not known yet: what they are, see names.py
    keys      if a sum may hold clients that failed: what their masks come off with, see locks.py

Each large tensor has a scale of its own; all small ones share one, which follows from their mean, so that no sum is
about a few numbers of each client. One of them may change by 10^15 times as much as another, as BatchNorm's statistics
of raw columns do next to the moments of an optimizer, so each element has 96 bits: of so few that costs little, and no
neighbour is large enough to take precision from another.

A field of b bits holds a value of q = b - ceil(log2 n_max) bits, so a sum of n_max fields never carries into its
neighbour; with 64 bits, of one bit less, so that float64 has the largest one; with 8, 10 and 12 bits, where every level
counts, as many levels as a sum of n_max leaves room for. See "Encoding" in docs/protocol.md.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import GetPydanticSchema, PlainSerializer, StrictFloat, StrictInt, StrictStr
from pydantic_core.core_schema import no_info_after_validator_function

from fedcore.codec.blocks import FieldSection
from fedcore.codec.locks import LIMBS, MOST_FAILURES
from fedcore.codec.names import (
    NAMES_BYTES,
    QUERY_NAMES_BYTES,
    MetricName,
    check_names,
    names_json,
    names_length,
    slot_count,
)
from fedcore.codec.scaling.ladder import Ladder, ladder_of
from fedcore.codec.scaling.widths import (
    FINE_BITS,
    FRACTION_BITS,
    LEAST_LEVELS,
    MIN_VALUE_BITS,
    SMALL_BITS,
    WIDEST_BITS,
    carry_bits,
    levels_of_bits,
)
from fedcore.codec.settings import (
    FIELD_BITS,
    MAX_SCALE,
    MIN_SCALE,
    NARROW_BITS,
    CodecSettings,
    check_count,
)
from fedcore.errors import EncodingError
from fedcore.state import Layout, TensorSpec
from fedcore.system.plain_json import NO_OTHER_KEYS

SMALL_TENSOR = 1024
"""Floating point tensors with fewer elements share one scale."""


def metric_fraction_bits(settings: CodecSettings, n_max: int) -> int:
    """Bits after the point of a metric's fixed-point word, such that no sum can wrap."""
    largest = n_max * settings.w_max * math.ceil(settings.metric_max)
    return 62 - largest.bit_length()


def _metrics_that_fit(settings: CodecSettings, n_max: int) -> str:
    """What to set so that the sums of metrics cannot overflow."""
    room = (1 << 62 - _MIN_METRIC_FRACTION) - 1
    largest, examples = room // (n_max * settings.w_max), room // (n_max * math.ceil(settings.metric_max))
    ways = [f"metric-max to at most {largest}"] * (largest > 0) + [f"w-max to at most {examples}"] * (examples > 0)
    return f"set {' or '.join(ways)}" if ways else "lower metric-max, w-max or the cohort size"


MOST_DIGITS = 64
"""Metrics with a second word in an exchange of which the number of metrics is not known."""
_MIN_METRIC_FRACTION = 8
_MAX_CLIENTS = 1 << 28
_DOMAIN = b"fedcore/codec/encoding/v9"
_WITH_MORE_ROOM = b"fedcore/codec/encoding/v8"

ENCODING_TAG = _DOMAIN.decode()
QUERY_ENCODING_TAG = _WITH_MORE_ROOM.decode()
"""Raised with whatever changes words or their meaning."""

_SEED = re.compile(r"([0-9a-f]{64})?")

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
class ScaleGroup:
    """The floating point tensors of one scale: a large one, or all small ones together."""

    specs: tuple[TensorSpec, ...]
    small: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(spec.size for spec in self.specs)

    @property
    def label(self) -> str:
        """What an error calls them."""
        return "the small tensors" if self.small else f"tensor {self.specs[0].name!r}"


def scale_groups(layout: Layout | None) -> tuple[ScaleGroup, ...]:
    """What of a model has a scale each."""
    floats = layout.floats if layout else ()
    large = [ScaleGroup(specs=(spec,), small=False) for spec in floats if spec.size >= SMALL_TENSOR]
    small = tuple(spec for spec in floats if spec.size < SMALL_TENSOR)
    return (*large, *([ScaleGroup(specs=small, small=True)] if small else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How one exchange turns updates into words and back.

    `layout` is None if only metrics are exchanged (evaluation). `scales` has one entry for each
    of `groups`: the bound on |w * delta|, with w = examples / w_max. `metrics` are the names in the order of
    their slots; None if they are not known yet. `failures` is how many clients that contributed nothing a sum may
    hold; one with more stays closed (`locks`). `rotation` is the seed (32 bytes, hex) of signs and subsets if
    uploads are compressed, else "".

    Raises EncodingError for parameters whose worst case could wrap or that leave too few bits.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    settings: CodecSettings
    layout: PlainLayout | None
    n_max: StrictInt
    field_bits: StrictInt
    scales: tuple[StrictFloat, ...]
    metrics: tuple[MetricName, ...] | None = None
    failures: StrictInt = 0
    rotation: StrictStr = ""

    def __post_init__(self) -> None:
        if type(self.n_max) is not int or not 1 <= self.n_max <= _MAX_CLIENTS:
            raise EncodingError(f"n_max is {self.n_max!r}; use a whole number from 1 to {_MAX_CLIENTS}")
        if type(self.field_bits) is not int or self.field_bits not in (*FIELD_BITS, WIDEST_BITS):
            raise EncodingError(
                f"the fields have {self.field_bits!r} bits; there are 8, 10, 12, 16, 21, 32 and 64", check="field-width"
            )
        if self.field_bits <= NARROW_BITS and self.field_bits < self.settings.field_bits:
            raise EncodingError(
                f"the fields have {self.field_bits} bits, fewer than the settings say", check="fields-too-narrow"
            )
        # Fields of metrics only are never filled, and an evaluation may ask more clients than a training.
        widths = (self.settings.field_bits, self.field_bits)
        # The settings' width is checked too: a first round with wide fields must not hide
        # that every later round will be refused.
        for bits in widths if self.layout is not None else (max(*widths, FINE_BITS),):
            if levels_of_bits(bits, self.n_max) < LEAST_LEVELS:
                raise EncodingError(
                    f"a sum of {self.n_max} clients leaves fewer than {MIN_VALUE_BITS} bits of a "
                    f"{bits}-bit field for a value; raise field-bits or lower the cohort size",
                    check="too-few-bits",
                )
        if self.metric_fraction_bits < _MIN_METRIC_FRACTION:
            raise EncodingError(
                f"the metrics of {self.n_max} clients could overflow their 64-bit sum: each may be up to metric-max = "
                f"{self.settings.metric_max:g} for w-max = {self.settings.w_max} examples; "
                + _metrics_that_fit(self.settings, self.n_max),
                check="metric-overflow",
            )
        groups = self.groups
        if len(self.scales) != len(groups):
            raise EncodingError(
                f"there are {len(self.scales)} scales, the model needs {len(groups)}", check="scale-count"
            )
        for group, scale in zip(groups, self.scales, strict=True):
            if type(scale) is not float or not MIN_SCALE <= scale <= MAX_SCALE:
                raise EncodingError(f"the scale of {group.label} is out of range", check="scale-range")
        check_names(self.metrics or (), self.settings.max_metrics)
        check_count("failures", self.failures, 0, min(MOST_FAILURES, self.n_max - 1))
        if not isinstance(self.rotation, str) or not _SEED.fullmatch(self.rotation):
            raise EncodingError("the seed of the rotation is not 32 bytes in hex", check="rotation-seed-form")
        if bool(self.rotation) != (self.settings.compresses and self.layout is not None):
            raise EncodingError(
                "a seed of a rotation is needed if uploads are compressed, and only then", check="rotation-seed"
            )

    @property
    def floats(self) -> tuple[TensorSpec, ...]:
        """The floating point tensors, in order."""
        return self.layout.floats if self.layout else ()

    @property
    def groups(self) -> tuple[ScaleGroup, ...]:
        """What has a scale each: every large tensor, in order, and at the end the small ones, if there are any."""
        return scale_groups(self.layout)

    @property
    def field_sections(self) -> tuple[FieldSection, ...]:
        """Those of the sections `packed` and `small` that hold anything."""
        tensors = [(index, spec, group.small) for index, group in enumerate(self.groups) for spec in group.specs]
        packed, small = (tuple((index, spec) for index, spec, one in tensors if one is kind) for kind in (False, True))
        sections = (
            FieldSection(
                name="packed",
                field_bits=self.field_bits,
                levels=self.levels,
                tensors=packed,
                sent_share=self.settings.sent_share(self.field_bits) if self.rotation else None,
            ),
            FieldSection(
                name="small",
                field_bits=SMALL_BITS,
                levels=self._levels(SMALL_BITS),
                tensors=small,
                fraction_bits=self.fraction_bits,
            ),
        )
        return tuple(section for section in sections if section.fields)

    @property
    def integers(self) -> tuple[TensorSpec, ...]:
        """The integer and boolean tensors, in order."""
        return self.layout.integers if self.layout else ()

    @property
    def value_bits(self) -> int:
        """q, the bits of one client's value in a field of a large tensor."""
        return self.field_bits - carry_bits(self.n_max)

    @property
    def fraction_bits(self) -> int:
        """Bits of the fraction of a step in small tensors, next to the whole steps, so that a sum never wraps."""
        return FRACTION_BITS - 1 - carry_bits(self.n_max)

    @property
    def levels(self) -> int:
        """L = 2^(q-1) - 1: a value is a whole number from -L to L, sent as 0 to 2L. With 64-bit fields 2^(q-2).

        With 12 bits and fewer floor((2^b - 1) / 2n), which is the same if n is a power of two, and else more. The
        range is symmetric so that zero is a level: what did not change is sent exactly.
        """
        return self._levels(self.field_bits)

    def levels_of(self, index: int) -> int:
        """The same for the tensors with scale `index`."""
        return self._levels(SMALL_BITS) if self.groups[index].small else self.levels

    def _levels(self, bits: int) -> int:
        return levels_of_bits(bits, self.n_max)

    @property
    def ladders(self) -> tuple[Ladder, ...]:
        """How the sum says how large the largest magnitude is, for each scale."""
        return tuple(ladder_of(small=group.small, field_bits=self.field_bits) for group in self.groups)

    @property
    def metric_fraction_bits(self) -> int:
        """Bits after the point in a metric's word."""
        return metric_fraction_bits(self.settings, self.n_max)

    @property
    def metric_digit_bits(self) -> int:
        """As many bits more are in its second word; 0 if there is none, as for queries, whose sums are whole."""
        return 64 - carry_bits(self.n_max) if self.settings.w_max > 1 else 0

    @property
    def names_room(self) -> int:
        """Bytes for names that travel in the sum; more if every client weighs 1, as in queries."""
        return NAMES_BYTES if self.settings.w_max > 1 else QUERY_NAMES_BYTES

    @property
    def sections(self) -> dict[str, slice]:
        """Where each part of the vector lies, by the names in the module's text, in order."""
        scales = len(self.scales)
        slots = self.settings.max_metrics if self.metrics is None else slot_count(self.metrics)
        sizes = {
            "packed": 0,
            "small": 0,
            **{section.name: section.words for section in self.field_sections},
            "failed": 1,
            "large": 1,
            "peaks": sum(ladder.words for ladder in self.ladders),
            "clipped": scales if self.settings.clips else 0,
            "examples": 1,
            "shrunk": 1,
            "lost": 1 if scales and self.settings.clips else 0,
            "integers": sum(spec.size for spec in self.integers),
            "metrics": slots,
            "digits": self._digits(slots),
            "names": names_length(self.n_max, self.names_room) if self.metrics is None else 0,
            "keys": self.failures * LIMBS,
        }
        sections = {}
        start = 0
        for name, size in sizes.items():
            sections[name] = slice(start, start + size)
            start += size
        return sections

    def _digits(self, slots: int) -> int:
        if not self.metric_digit_bits:
            return 0
        return min(slots, MOST_DIGITS) if self.metrics is None else slots

    @property
    def words(self) -> int:
        """Length of the vector in 64-bit words."""
        return int(self.sections["keys"].stop)

    @property
    def unlocked(self) -> slice:
        """The words that a client whose update is too large leaves open."""
        sections = self.sections
        return slice(sections["failed"].start, sections["peaks"].stop)

    def step(self, index: int) -> float:
        """Distance between two values of the tensors with scale `index`, in units of w * delta."""
        fraction = self.fraction_bits if self.groups[index].small else 0
        return math.ldexp(self.scales[index] / self.levels_of(index), -fraction)

    def canonical(self) -> bytes:
        """SHA-256 over every parameter, unambiguous; it goes into the protocol's ctx."""
        parts = [
            self.settings.canonical(),
            struct.pack(">III", self.n_max, self.field_bits, self.failures),
            self.layout.digest() if self.layout is not None else b"",
            struct.pack(f">{len(self.scales)}d", *self.scales),
            b"" if self.metrics is None else names_json(self.metrics),
            bytes.fromhex(self.rotation),
        ]
        more = self.metrics is None and self.names_room > NAMES_BYTES
        return hash_of_parts(_WITH_MORE_ROOM if more else _DOMAIN, parts)


def hash_of_parts(domain: bytes, parts: Iterable[bytes]) -> bytes:
    """SHA-256 over a domain and parts with their lengths, so that no two lists of parts hash alike; 32 bytes."""
    hasher = hashlib.sha256(domain)
    for part in parts:
        hasher.update(struct.pack(">Q", len(part)) + part)
    return hasher.digest()
