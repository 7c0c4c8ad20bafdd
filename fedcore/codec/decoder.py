"""The sum of a cohort's words to the weighted mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS, FieldBlock, Span, blocks, for_each, release_every
from fedcore.codec.coarseness import Change, TensorChange
from fedcore.codec.encoding import FIRST_BITS, FRACTION_BITS, Encoding, FieldSection
from fedcore.codec.fields import decode_integers, join, padding, split_words, unpack
from fedcore.codec.locks import apply_lock, find_keys, mask_of
from fedcore.codec.metrics import decode_metrics, lost_share
from fedcore.codec.names import MetricName, names_from_sum
from fedcore.codec.privacy.parameters import AnyEncoding
from fedcore.codec.rotation import UNIT, Rotation, Unit
from fedcore.codec.statistics import MagnitudeStatistics, read_statistics
from fedcore.errors import (
    NothingContributed,
    PeerError,
    RepliesDiffer,
    RoundFailed,
    RoundingTooCoarse,
    TooFewContributed,
    UpdateTooLarge,
    UsageError,
)
from fedcore.state import FileSink, Layout, MemorySink, ModelState, StateSink, TensorSpec, from_float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The weighted mean of one exchange.

    examples
        Sum over the survivors.
    failures
        How many of the survivors contributed nothing; an estimate under differential privacy.
    lost_norm
        How much of the norm of their updates was cut off: the mean over the clients, weighted by examples, of the norm
        that an update lost over its norm, from 0 to 1. Not 0 with the setting clipping = "warn" alone.
    metrics
        Means weighted by examples, by name; lists if the clients reported lists. Empty if the clients' names
        differ.
    names
        The names of the metrics, which the next exchange of the kind can be encoded with; None if they differ.
    statistics
        What the next encoding follows from.
    state
        base + mean in the layout's dtypes; None for an encoding without a layout.
    """

    examples: int
    failures: int
    lost_norm: float
    metrics: dict[str, float | list[float]]
    names: tuple[MetricName, ...] | None
    statistics: MagnitudeStatistics
    state: ModelState | None


def decode(
    encoding: Encoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
    out_path: Path | None = None,
    threads: int = 1,
    sums: bool = False,
    release: Callable[[], None] = lambda: None,
) -> Decoded:
    """Decode the unmasked sum `words` ([encoding.words], uint64) of `survivors` updates.

    The new state is written to `out_path` (safetensors, atomic) and mapped, or kept in memory if that is None; the
    sum and the base are read block by block. Neither changes, but that the masks of clients that failed come off the
    sum, in place, or off a copy if the sum cannot be written to. The result does not depend on `threads`. With
    `sums` the metrics are no means but sums (of a query, in which each client is one example).

    Raises PeerError when honest clients cannot have made the sum, which also catches a mask that was not removed;
    NothingContributed when all survivors failed, TooFewContributed when more did than `encoding.failures`,
    UpdateTooLarge if clients locked it; RoundingTooCoarse if too much of a tensor's update is rounding;
    RoundFailed when they have no examples; RepliesDiffer when their numbers cannot be added up; EncodingError when the
    mean does not fit a tensor's dtype; UsageError for arguments that do not belong together.

    Args:
        release: called now and then, where `words` is a map of a file, to give back the memory of what was read of it.
    """
    check_sum(encoding, words, survivors=survivors, base=base)
    failures, words = unlock(encoding, words, survivors, threads)
    small = {name: words[section].tolist() for name, section in encoding.sections.items() if name not in _VECTORS}
    contributors = survivors - failures
    large = small["large"][0]
    statistics = read_statistics(
        encoding,
        contributors=contributors,
        failures=failures,
        large=large,
        sizes=small["sizes"],
        powers=small["powers"],
        clipped=small["clipped"],
        shrunk=0 if large else small["shrunk"][0],
    )
    if large:
        raise UpdateTooLarge(large, survivors, statistics)
    examples = small["examples"][0]
    if examples > contributors * encoding.settings.w_max:
        raise PeerError(
            "the sum of examples is out of range: a client sent a malformed update", check="malformed-update"
        )
    if examples == 0:
        raise RoundFailed(
            "the clients that are left have no examples; there is nothing to average", check="no-examples"
        )
    names, metrics = _metrics(encoding, words, small["metrics"], contributors, examples, sums=sums)
    state = None
    if base is not None:
        mean = _Mean(
            encoding=encoding,
            words=words,
            survivors=survivors,
            contributors=contributors,
            examples=examples,
            base=base,
            statistics=statistics,
            threads=threads,
            releases=(base.release, release),
        )
        state = filled(base.layout, mean.write, out_path)
        statistics = mean.statistics
    return Decoded(
        examples=examples,
        failures=failures,
        lost_norm=lost_share(encoding, small["lost"], contributors=contributors, examples=examples),
        metrics=metrics,
        names=names,
        statistics=statistics,
        state=state,
    )


_RELEASE_UNITS = 12
_VECTORS = frozenset({"packed", "small", "integers", "names", "keys"})
Releases = Sequence[Callable[[], None]]
"""What gives back the memory of mapped files."""


def unlock(
    encoding: Encoding, words: NDArray[np.uint64], survivors: int, threads: int
) -> tuple[int, NDArray[np.uint64]]:
    """Take off the masks of the clients that failed, if they are few enough: their number, and the words."""
    sections = encoding.sections
    failures, keys = int(words[sections["failed"]][0]), sections["keys"]
    if failures > survivors:
        raise PeerError(
            "more clients than survived report a failure: a client sent a malformed update", check="malformed-update"
        )
    if failures == survivors:
        raise NothingContributed(failures, survivors)
    if failures > encoding.failures:
        raise TooFewContributed(failures, survivors, tolerated=encoding.failures)
    masks = [mask_of(key).inverse() for key in find_keys(words[keys], failures)]
    if masks and not words.flags.writeable:
        words = words.copy()
    apply_lock(words[: keys.start], sections["failed"], masks, threads=threads)
    return failures, words


def _metrics(
    encoding: Encoding, words: NDArray[np.uint64], found: list[int], contributors: int, examples: int, *, sums: bool
) -> tuple[tuple[MetricName, ...] | None, dict[str, float | list[float]]]:
    """The names, None if they differ, and what they name.

    Args:
        found: the words of the metrics.
    """
    names = encoding.metrics
    if names is None:
        names = names_from_sum(words[encoding.sections["names"]], contributors, encoding.settings.max_metrics)
    if names is not None:
        return names, decode_metrics(encoding, names, found, survivors=contributors, examples=examples, sums=sums)
    if sums:
        raise RepliesDiffer
    return None, {}


def check_sum(
    encoding: AnyEncoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
) -> None:
    """Raise UsageError for arguments of `decode` that do not belong together."""
    if words.dtype != np.uint64 or words.shape != (encoding.words,) or not words.flags.c_contiguous:
        raise UsageError(f"the sum must be a contiguous uint64 array of {encoding.words} words", check="vector-form")
    if not 1 <= survivors <= encoding.n_max:
        raise UsageError(f"{survivors} survivors of at most {encoding.n_max} clients")
    if (base is None) != (encoding.layout is None):
        raise UsageError("pass the global model if the encoding has a layout, and only then", check="global-model")
    if base is not None and encoding.layout is not None:
        encoding.layout.check_same(base.layout, what="the global model")


def filled(layout: Layout, fill: Callable[[StateSink], None], out_path: Path | None) -> ModelState:
    """The state that `fill` writes, in memory, or as a file at `out_path` that is mapped."""
    if out_path is None:
        memory = MemorySink(layout)
        fill(memory)
        return memory.state()
    with FileSink(out_path, layout) as file:
        fill(file)
    return ModelState.open(out_path)


@dataclass(slots=True, kw_only=True)
class _Mean:
    """The base and the mean of the updates to it.

    statistics: what the sum tells; `write` adds by how much it changed each large tensor.
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
    _moved: list[tuple[int, TensorChange]] = field(default_factory=list)

    def write(self, sink: StateSink) -> None:
        """Write all tensors; raises RoundingTooCoarse before the sink is closed."""
        encoding, base = self.encoding, self.base
        for part in encoding.field_sections:
            packed = self.words[encoding.sections[part.name]]
            sums = _Sums.of(encoding, part, packed, self.survivors, self.examples)
            if part.sent_share is None:
                self._note(sums, _decode_floats(sums, base, sink, self.threads, self.releases))
            else:
                _decode_rotated(sums, encoding.rotation, base, sink, self.releases)
        integers = self.words[encoding.sections["integers"]]
        decode_integers(encoding, integers, base=base, examples=self.examples, sink=sink)
        self._check_rounding()

    def _note(self, sums: _Sums, found: Sequence[tuple[TensorSpec, Change]]) -> None:
        """By how much each tensor of a section changed.

        Args:
            found: of each of its spans.
        """
        parts: dict[str, list[Change]] = {}
        for spec, moved in found:
            parts.setdefault(spec.name, []).append(moved)
        for index, spec in sums.part.tensors:
            tensor = TensorChange.of(
                spec,
                parts.get(spec.name, ()),
                unit=sums.units[index],
                fraction_bits=sums.part.fraction_bits,
                contributors=self.contributors,
            )
            self._moved.append((index, tensor))

    def _check_rounding(self) -> None:
        encoding, typical = self.encoding, [0.0] * len(self.encoding.scales)
        for index, tensor in self._moved:
            if not encoding.groups[index].small:
                typical[index] = tensor.typical * encoding.step(index)
        self.statistics = replace(self.statistics, moved=tuple(typical))
        coarse = [(index, tensor) for index, tensor in self._moved if tensor.is_coarse(self.base)]
        if coarse:
            worst = max((tensor for _, tensor in coarse), key=lambda tensor: tensor.share)
            # Of what is in the widest fields already nothing can be finer.
            helps = encoding.field_bits < FIRST_BITS and not any(encoding.groups[index].small for index, _ in coarse)
            raise RoundingTooCoarse(worst.spec.name, worst.share, helps=helps, statistics=self.statistics)


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of the fields of one section.

    offset: that of an update of zeros.
    units: of a field, by tensor.
    """

    part: FieldSection
    packed: NDArray[np.uint64]
    offset: int
    units: tuple[float, ...]

    @classmethod
    def of(
        cls, encoding: Encoding, part: FieldSection, packed: NDArray[np.uint64], survivors: int, examples: int
    ) -> _Sums:
        """Raises PeerError if the section's padding holds anything."""
        stray = padding(packed, part.field_bits, part.fields)
        if part.fraction_bits:
            stray = padding(packed[part.fields :], FRACTION_BITS, part.fields)
        if stray:
            raise PeerError("the padding of the sum is not zero: a client sent a malformed update", check="padding")
        units = (scale / part.levels * encoding.settings.w_max / examples for scale in encoding.scales)
        return cls(part, packed, survivors * part.levels, tuple(units))

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
        whole, fractions = split_words(self.packed, self.part.fields)
        whole, fractions = whole[position : position + out.size], fractions[position : position + out.size]
        terms = self.offset // self.part.levels
        if whole.max() > 2 * self.offset or int(fractions.max()) > terms << self.part.fraction_bits:
            raise PeerError(
                f"the sum of tensor {spec.name!r} is out of range: a client sent a malformed update",
                check="malformed-update",
            )
        join(whole, fractions, self.offset, self.part.fraction_bits, out)


def _decode_floats(
    sums: _Sums, base: ModelState, sink: StateSink, threads: int, release: Releases
) -> list[tuple[TensorSpec, Change]]:
    """Write the tensors of a section; by how much each of its spans changed."""

    def prepare() -> Callable[[FieldBlock], list[tuple[TensorSpec, Change]]]:
        mean, old = np.empty(BLOCK_FIELDS, np.float64), np.empty(BLOCK_FIELDS, np.float64)

        def decode_span(span: Span) -> tuple[TensorSpec, Change]:
            new, before = mean[: span.size], old[: span.size]
            sums.read(span.spec, span.position, span.size, new)
            moved = Change(squares=float(new @ new), elements=int(np.count_nonzero(new)))
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


def _decode_rotated(sums: _Sums, seed: str, base: ModelState, sink: StateSink, release: Releases) -> None:
    """The same for units that were rotated.

    Coordinates that were not sent count as zero, and the others as much more: so the expectation over subsets is right.
    """

    def prepare() -> Callable[[Unit], None]:
        rotation, mean = Rotation(seed), np.empty(2 * UNIT, np.float64)

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
