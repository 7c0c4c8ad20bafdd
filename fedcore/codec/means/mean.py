"""The weighted mean of the tensors of a cohort, from the fields of its sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS, FieldBlock, FieldSection, Span, blocks, for_each, release_every
from fedcore.codec.encoding import Encoding
from fedcore.codec.fields import decode_integers, join, padding, split_words, unpack
from fedcore.codec.rotation import UNIT, Rotation, Unit
from fedcore.codec.scaling.coarseness import Change, TensorChange
from fedcore.codec.scaling.statistics import MagnitudeStatistics
from fedcore.codec.scaling.widths import FRACTION_BITS, WIDEST_BITS
from fedcore.errors import (
    PeerError,
    RoundingTooCoarse,
)
from fedcore.state import ModelState, StateSink, TensorSpec, from_float

_RELEASE_UNITS = 12
Releases = Sequence[Callable[[], None]]
"""What gives back the memory of mapped files."""


@dataclass(slots=True, kw_only=True)
class WeightedMean:
    """The base and the mean of the updates to it.

    statistics: what the sum tells; `write` adds by how much it changed each large tensor, and the small ones at most.
    rounded: of `write`, the names of the integer tensors whose mean is no whole number.
    """

    encoding: Encoding
    words: NDArray[np.uint64]
    survivors: int
    contributors: int
    examples: int
    base: ModelState
    statistics: MagnitudeStatistics
    threads: int
    releases: Releases
    rounded: tuple[str, ...] = field(default=(), init=False)
    _moved: list[tuple[int, TensorChange]] = field(default_factory=list)

    def write(self, sink: StateSink) -> None:
        """Write all tensors; raises RoundingTooCoarse before the sink is closed."""
        encoding, base = self.encoding, self.base
        for part in encoding.field_sections:
            packed = self.words[encoding.sections[part.name]]
            sums = FieldSums.of(encoding, part, packed, self.survivors, self.examples)
            self._note(sums, sums.write_tensors(base, sink, threads=self.threads, releases=self.releases))
        integers = self.words[encoding.sections["integers"]]
        self.rounded = decode_integers(encoding, integers, base=base, examples=self.examples, sink=sink)
        self._check_rounding()

    def _note(self, sums: FieldSums, changes: Sequence[tuple[TensorSpec, Change]]) -> None:
        """By how much each tensor of a section changed.

        Args:
            changes: of each of its spans; of a rotated one nothing.
        """
        if sums.part.sent_share is not None:
            return
        parts: dict[str, list[Change]] = {}
        for spec, moved in changes:
            parts.setdefault(spec.name, []).append(moved)
        for index, spec in sums.part.tensors:
            tensor = TensorChange.of(
                spec,
                parts.get(spec.name, ()),
                unit=sums.units[index],
                fraction_bits=sums.part.fraction_bits,
                contributors=self.contributors,
                peak=self.statistics.peaks[index] / self.encoding.step(index),
            )
            self._moved.append((index, tensor))

    def _check_rounding(self) -> None:
        encoding, typical, peaks = self.encoding, [0.0] * len(self.encoding.scales), list(self.statistics.peaks)
        for index, tensor in self._moved:
            if encoding.groups[index].small:
                peaks[index] = max(peaks[index], tensor.largest * encoding.step(index))
            else:
                typical[index] = tensor.typical * encoding.step(index)
        self.statistics = replace(self.statistics, moved=tuple(typical), peaks=tuple(peaks))
        coarse = [(index, tensor) for index, tensor in self._moved if tensor.is_coarse(self.base)]
        if coarse:
            worst = max((tensor for _, tensor in coarse), key=lambda tensor: tensor.share)
            # Of what is in the widest fields already nothing can be finer.
            helps = encoding.field_bits < WIDEST_BITS and not any(encoding.groups[index].small for index, _ in coarse)
            raise RoundingTooCoarse(worst.spec.name, worst.share, helps=helps, statistics=self.statistics)


@dataclass(frozen=True, slots=True)
class FieldSums:
    """The sums of the fields of one section.

    offset: that of an update of zeros.
    units: of a field, by tensor.
    rotation: seed, of a section that was rotated.
    """

    part: FieldSection
    packed: NDArray[np.uint64]
    offset: int
    units: tuple[float, ...]
    rotation: str

    @classmethod
    def of(
        cls, encoding: Encoding, part: FieldSection, packed: NDArray[np.uint64], survivors: int, examples: int
    ) -> FieldSums:
        """Raises PeerError if the section's padding holds anything."""
        stray = padding(packed, part.field_bits, part.fields)
        if part.fraction_bits:
            stray = padding(packed[part.fields :], FRACTION_BITS, part.fields)
        if stray:
            raise PeerError("the padding of the sum is not zero: a client sent a malformed update", check="padding")
        units = (scale / part.levels * encoding.settings.w_max / examples for scale in encoding.scales)
        return cls(part, packed, survivors * part.levels, tuple(units), encoding.rotation)

    def write_tensors(
        self, base: ModelState, sink: StateSink, *, threads: int, releases: Releases = ()
    ) -> list[tuple[TensorSpec, Change]]:
        """Write base + mean of the section's tensors; by how much each of its spans changed, if it was not rotated."""
        if self.part.sent_share is None:
            return _decode_floats(self, base, sink, threads, releases)
        _decode_rotated(self, base, sink, releases)
        return []

    def read(self, spec: TensorSpec, position: int, count: int, out: NDArray[np.float64]) -> None:
        """Write the first of `count` fields, less the offset, to `out`; raises PeerError for what cannot be a sum.

        Fields beyond those of `out` fill up a unit, and are zero in every update.
        """
        if self.part.fraction_bits:
            self._read_split(spec, position, out)
            return
        fields = unpack(self.packed, self.part.field_bits, position, count)
        if fields.max() > 2 * self.offset or (fields[out.size :] != self.offset).any():
            raise PeerError(
                f"the sum of tensor {spec.name!r} is out of range: a client sent a malformed update",
                check="malformed-update",
            )
        _subtract_offset(fields[: out.size], self.offset, out)

    def _read_split(self, spec: TensorSpec, position: int, out: NDArray[np.float64]) -> None:
        """The same for fields with fractions."""
        steps, fractions = split_words(self.packed, self.part.fields)
        steps, fractions = steps[position : position + out.size], fractions[position : position + out.size]
        terms = self.offset // self.part.levels
        if steps.max() > 2 * self.offset or int(fractions.max()) > terms << self.part.fraction_bits:
            raise PeerError(
                f"the sum of tensor {spec.name!r} is out of range: a client sent a malformed update",
                check="malformed-update",
            )
        join(steps, fractions, self.offset, self.part.fraction_bits, out)


def _decode_floats(
    sums: FieldSums, base: ModelState, sink: StateSink, threads: int, release: Releases
) -> list[tuple[TensorSpec, Change]]:
    """Write the tensors of a section; by how much each of its spans changed."""

    def prepare() -> Callable[[FieldBlock], list[tuple[TensorSpec, Change]]]:
        mean, old = np.empty(BLOCK_FIELDS, np.float64), np.empty(BLOCK_FIELDS, np.float64)

        def decode_span(span: Span) -> tuple[TensorSpec, Change]:
            new, before = mean[: span.size], old[: span.size]
            sums.read(span.spec, span.position, span.size, new)
            # Of large tensors nobody needs the largest, and it takes as long as the sum of squares.
            largest = float(np.abs(new).max(initial=0.0)) if sums.part.fraction_bits else 0.0
            # Not new @ new: the threads of a BLAS spin on after each call, on cores that others need.
            squares = float(np.square(new, out=before).sum())
            moved = Change(squares=squares, elements=int(np.count_nonzero(new)), largest=largest)
            new *= sums.units[span.index]
            # A copy and an addition within one dtype take half the time of an addition of two dtypes.
            np.copyto(before, _values(base, span.spec, span.start, span.stop))
            new += before
            sink.write(span.spec, span.start, from_float(span.spec, new))
            return span.spec, moved

        def decode_block(block: FieldBlock) -> list[tuple[TensorSpec, Change]]:
            moved = [decode_span(span) for span in block.spans]
            block.release(*release)
            return moved

        return decode_block

    return list(chain.from_iterable(for_each(blocks(sums.part), prepare, threads=threads)))


def _decode_rotated(sums: FieldSums, base: ModelState, sink: StateSink, release: Releases) -> None:
    """The same for units that were rotated.

    Coordinates that were not sent count as zero, and the others as much more: so the expectation over subsets is right.
    """

    def prepare() -> Callable[[Unit], None]:
        rotation, mean = Rotation(sums.rotation), np.empty(2 * UNIT, np.float64)

        def decode_unit(unit: Unit) -> None:
            values = mean[: unit.values]
            sums.read(unit.spec, unit.position, unit.fields, values)
            values *= sums.units[unit.index] * unit.rows / unit.sent_rows
            flat = rotation.matrix(unit)
            flat.fill(0)
            flat.reshape(unit.rows, -1)[rotation.subset(unit)] = values.reshape(unit.sent_rows, -1)
            rotation.rotate_back(unit, flat)
            new = _values(base, unit.spec, unit.start, unit.stop).astype(np.float64)
            new += flat[: unit.size]
            sink.write(unit.spec, unit.start, from_float(unit.spec, new))
            release_every(unit.number, _RELEASE_UNITS, *release)

        return decode_unit

    for_each(sums.part.units(), prepare, threads=1)  # as in the encoder: more take longer


def _subtract_offset(fields: NDArray[Any], offset: int, out: NDArray[np.float64]) -> None:
    """Write fields - offset: exact, and then rounded to float64, which does not have all whole numbers of 64 bits."""
    if fields.dtype == np.uint64:
        np.subtract(fields.view(np.int64), offset, out=out, dtype=np.int64, casting="unsafe")
        return
    np.copyto(out, fields)
    out -= offset


def _values(state: ModelState, spec: TensorSpec, start: int, stop: int) -> NDArray[np.floating]:
    """Elements [start, stop) in a dtype that NumPy can add."""
    if spec.dtype == "BF16":
        return state.float32(spec.name, start, stop)
    return state[spec.name].reshape(-1)[start:stop]
