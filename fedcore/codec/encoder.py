"""One client's update to words."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS, FieldBlock, Span, blocks, for_each, release_every
from fedcore.codec.encoding import POWERS_FROM, Encoding, FieldSection, ScaleGroup
from fedcore.codec.fields import (
    KEY_BYTES,
    BlockSummary,
    StochasticRounder,
    encode_integers,
    field_dtype,
    field_view,
    largest_magnitude,
    pack,
    split,
    split_words,
)
from fedcore.codec.gpu.device import DeviceVector
from fedcore.codec.locks import apply_lock, draw_key, forgotten_mask, mask_of, power_words
from fedcore.codec.metrics import MetricValue, encode_metrics, lost_word
from fedcore.codec.names import names_words
from fedcore.codec.privacy.parameters import AnyEncoding
from fedcore.codec.rotation import Rotation, Unit
from fedcore.codec.settings import MAX_SCALE
from fedcore.codec.statistics import power_word, size_range, size_word
from fedcore.errors import EncodingError, UsageError
from fedcore.state import ModelState, TensorSpec

_RELEASE_UNITS = 12
"""As many elements as between two releases of blocks."""

MOST_CLIPPED = 8
MOST_CLIPPED_SHARE = 0.01
"""If updates are clipped, one of which more elements than both of these would be, under any scale, is not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """An encoded update, still in clear: `words` ([encoding.words], uint64) must be masked.

    clipped
        Elements of floating point tensors that exceeded their scale.
    shrunk
        Whether the L2 clip shrank the update.
    overflowed
        Whether they lock the sum, since the update is too large for its scales and is not to be clipped.
    """

    words: NDArray[np.uint64] = field(repr=False)
    clipped: int
    shrunk: bool
    overflowed: bool


def encode(
    encoding: Encoding,
    *,
    base: ModelState | None,
    local: ModelState | None,
    examples: int,
    metrics: Mapping[str, MetricValue],
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None = None,
    threads: int = 1,
    factor: float = 1.0,
    device: DeviceVector | None = None,
) -> Encoded:
    """Encode factor * (local - base), weighted by examples, and metrics; both states None without a layout.

    `factor`, from 0 to 1, scales floating point tensors, after the L2 clip, and neither the weight that the sum is
    divided by nor tensors of integers. `randomness(k)` returns k secret random bytes. `out` ([encoding.words], uint64,
    contiguous) takes the words if it is given; after an error its content is meaningless. The result does not
    depend on `threads`, of which what is rotated takes one. With `device` the same words are there, and those that are
    returned wait for their masks (`DeviceVector.apply_masks`); until then they hold a part of them.

    An update of which an element exceeds its scale is clipped, or, as the settings say, locks the sum: the words then
    tell that, and its magnitudes, and nothing else.

    Raises EncodingError, naming the tensor or metric, for NaN and infinity, for tensors that do not
    match the layout, for examples or metrics out of range, for an update of which too much would
    be clipped, and for one that no scale holds.
    """
    count = _check_examples(encoding, examples)
    words = _cleared(encoding, out)
    sections = encoding.sections
    names, metric_words = encode_metrics(encoding, metrics, count)
    if encoding.metrics is None:
        words[sections["names"]] = names_words(names)
    words[sections["examples"]] = count
    first = sections["metrics"].start
    words[first : first + len(metric_words)] = metric_words
    clipped, shrunk, overflowed = 0, False, False
    if encoding.layout is None:
        if base is not None or local is not None:
            raise UsageError("this encoding carries metrics only; pass no model states", check="metrics-only")
    else:
        if base is None or local is None:
            raise UsageError(
                "this encoding carries an update; pass the global and the local state", check="states-missing"
            )
        encoding.layout.check_same(base.layout, what="the global model")
        encoding.layout.check_same(local.layout, what="the trained model")
        update = _Update(encoding=encoding, base=base, local=local, threads=threads)
        shrink = update.shrink_factor()
        shrunk = shrink < 1
        words[sections["shrunk"]] = int(shrunk)
        weight = factor * shrink * count / encoding.settings.w_max
        clipped = _encode_floats(update, words, weight, randomness, device)
        encode_integers(encoding, words[sections["integers"]], base=base, local=local, examples=count)
        overflowed = clipped > 0 and not encoding.settings.clips
        if overflowed:
            words[sections["large"]] = 1
        elif clipped:
            words[sections["lost"]] = lost_word(encoding, update.lost_share(weight), count)
    if device:
        device.load(words, sections["failed"].start, encoding.words)
    if overflowed:
        lock, end = [forgotten_mask(randomness)], sections["keys"].start
        if device:
            device.apply_lock(encoding.unlocked, end, lock)
        else:
            apply_lock(words[:end], encoding.unlocked, lock, threads=threads)
    return Encoded(words=words, clipped=clipped, shrunk=shrunk, overflowed=overflowed)


def encode_nothing(
    encoding: Encoding, *, randomness: Callable[[int], bytes], out: NDArray[np.uint64] | None = None
) -> Encoded:
    """The words of a client that contributes nothing: an update of zero, no weight, and one failure; see `encode`.

    They are locked: a sum that holds more of them than `encoding.failures` tells their number only (`locks`).
    """
    words = _cleared(encoding, out)
    sections = encoding.sections
    words[sections["failed"]] = 1
    for part in encoding.field_sections:
        zeros = np.full(BLOCK_FIELDS, part.levels, field_dtype(part.field_bits))
        for start in range(0, part.fields, BLOCK_FIELDS):
            pack(words[sections[part.name]], part.field_bits, start, zeros[: part.fields - start])
    key = draw_key(randomness)
    words[sections["keys"]] = power_words(key, encoding.failures, encoding.n_max, randomness)
    apply_lock(words[: sections["keys"].start], sections["failed"], [mask_of(key)])
    return Encoded(words=words, clipped=0, shrunk=False, overflowed=False)


def _cleared(encoding: Encoding, out: NDArray[np.uint64] | None) -> NDArray[np.uint64]:
    """Where the words go, zero where they are not all packed fields: the last word of those may end with padding."""
    words = check_out(encoding, out)
    words[max(encoding.sections["packed"].stop - 1, 0) :] = 0
    return words


def _check_examples(encoding: Encoding, examples: object) -> int:
    limit = encoding.settings.w_max
    if isinstance(examples, bool) or not isinstance(examples, numbers.Integral):
        raise EncodingError(f"the number of examples is {examples!r}; report a whole number", check="examples")
    count = int(examples)
    if not 0 <= count <= limit:
        raise EncodingError(
            f"{count} examples are outside 0 to {limit}; raise w-max or train on fewer a round", check="examples"
        )
    return count


def check_out(encoding: AnyEncoding, out: NDArray[np.uint64] | None) -> NDArray[np.uint64]:
    """Where the words go: `out`, or new memory. Raises UsageError for an `out` that does not fit."""
    if out is None:
        return np.zeros(encoding.words, np.uint64)
    if out.dtype != np.uint64 or out.shape != (encoding.words,) or not out.flags.c_contiguous:
        raise UsageError(f"out must be a contiguous uint64 array of {encoding.words} words", check="vector-form")
    return out


def _encode_floats(
    update: _Update,
    words: NDArray[np.uint64],
    weight: float,
    randomness: Callable[[int], bytes],
    device: DeviceVector | None,
) -> int:
    """Fill the fields, on the device if given, and their statistics; returns the number of clipped elements."""
    encoding, sections = update.encoding, update.encoding.sections
    ratios, clipped = [0.0] * len(encoding.scales), [0] * len(encoding.scales)
    for part in encoding.field_sections:
        section = sections[part.name]
        if device and device.serves(part):
            rounded = update.round_on(device, part, section.start, weight, randomness)
        else:
            rounded = update.fill(part, words[section], weight, randomness)
            if device:
                device.load(words, section.start, section.stop)
        for index, summary in rounded:
            ratios[index] = max(ratios[index], summary.largest / part.levels)
            clipped[index] += summary.clipped
    for index, group in enumerate(encoding.groups):
        _check_fits(encoding, group, clipped[index], ratios[index] * encoding.scales[index])
    # Who is within its scale but for the roundoff of the weight tells no more than the scale.
    unlocked = [ratio if count else min(ratio, 1.0) for ratio, count in zip(ratios, clipped, strict=True)]
    digits = size_range(encoding.field_bits)
    words[sections["sizes"]] = [size_word(ratio, encoding.n_max, digits) for ratio in unlocked]
    if encoding.n_max >= POWERS_FROM:
        words[sections["powers"]] = [power_word(ratio, encoding.n_max) for ratio in unlocked]
    words[sections["clipped"]] = clipped if encoding.settings.clips else [min(count, 1) for count in clipped]
    return sum(clipped)


def _check_fits(encoding: Encoding, group: ScaleGroup, clipped: int, largest: float) -> None:
    """Refuse to send what no scale holds; or what is mostly cut off: sums at many scales would tell single elements."""
    if largest > MAX_SCALE:
        raise EncodingError(
            f"an element of {group.label} changed by {largest:g} times w-max / examples, and no sum has room for that; "
            "lower the learning rate, or look for bad input",
            check="update-beyond-scales",
        )
    if encoding.settings.clips and clipped > MOST_CLIPPED and clipped > group.size * MOST_CLIPPED_SHARE:
        raise EncodingError(
            f"{clipped} of {group.size} elements of {group.label} changed by more than this exchange has room for, so "
            'nothing is contributed; the next one has more. With clipping = "repeat" it would be asked for again',
            check="mostly-clipped",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    """The floating point tensors of local - base, and the number of threads that go through them."""

    encoding: Encoding
    base: ModelState
    local: ModelState
    threads: int

    def shrink_factor(self) -> float:
        """min(1, clip_norm / norm), the norm over all floating point tensors together."""
        clip_norm = self.encoding.settings.clip_norm
        if clip_norm is None:
            return 1.0
        # Exact summation of the blocks' sums: nothing depends on who computed which.
        squares = (for_each(blocks(part), self._squares, threads=self.threads) for part in self.encoding.field_sections)
        norm = math.sqrt(math.fsum(chain.from_iterable(squares)))
        return clip_norm / norm if norm > clip_norm else 1.0

    def _squares(self) -> Callable[[FieldBlock], float]:
        buffer, wide = np.empty(BLOCK_FIELDS, np.float32), np.empty(BLOCK_FIELDS, np.float64)

        def sum_squares(block: FieldBlock) -> float:
            total = 0.0
            for _, delta, _ in self._deltas(block, buffer):
                squares = wide[: delta.size]
                np.copyto(squares, delta)
                np.square(squares, out=squares)
                total += float(squares.sum())
            return total

        return sum_squares

    def lost_share(self, weight: float) -> float:
        """The L2 norm of what is cut off over that of the whole update."""
        parts = (
            for_each(blocks(part), lambda: self._lost(weight), threads=self.threads)
            for part in self.encoding.field_sections
        )
        lost, whole = zip(*chain.from_iterable(parts), strict=True)
        return min(math.sqrt(math.fsum(lost) / math.fsum(whole)), 1.0)

    def _lost(self, weight: float) -> Callable[[FieldBlock], tuple[float, float]]:
        buffer = np.empty(BLOCK_FIELDS, np.float32)

        def squares(block: FieldBlock) -> tuple[float, float]:
            lost = whole = 0.0
            for span, delta, _ in self._deltas(block, buffer):
                sizes = np.abs(delta.astype(np.float64)) * weight
                beyond = np.maximum(sizes - self.encoding.scales[span.index], 0.0)
                whole += float(sizes @ sizes)
                lost += float(beyond @ beyond)
            return lost, whole

        return squares

    def fill(
        self, part: FieldSection, words: NDArray[np.uint64], weight: float, randomness: Callable[[int], bytes]
    ) -> Iterator[tuple[int, BlockSummary]]:
        """Fill the words of one section, as it is made; what happened, by scale."""
        if part.fraction_bits:
            return iter(self.split_to(part, words, weight, randomness))
        fill = self.round_to if part.sent_share is None else self.rotate_to
        return fill(part, words, weight, randomness)

    def round_to(
        self, part: FieldSection, packed: NDArray[np.uint64], weight: float, randomness: Callable[[int], bytes]
    ) -> Iterator[tuple[int, BlockSummary]]:
        """Fill the words `packed` of one section; what happened, by scale."""
        bits, factors = part.field_bits, self._factors(part, weight)
        shared = StochasticRounder(field_bits=bits, levels=part.levels, randomness=randomness)

        def prepare() -> Callable[[FieldBlock], list[tuple[int, BlockSummary]]]:
            rounder, buffer = shared.for_thread(), np.empty(BLOCK_FIELDS, np.float32)

            def round_block(block: FieldBlock) -> list[tuple[int, BlockSummary]]:
                rounder.begin(block.number)
                summaries = []
                for span, delta, size in self._deltas(block, buffer):
                    view = field_view(packed, bits, span.position, delta.size)
                    fields, summary = rounder.round(delta, factors[span.index], largest=size, out=view)
                    if view is None:
                        pack(packed, bits, span.position, fields)
                    summaries.append((span.index, summary))
                return summaries

            return round_block

        return chain.from_iterable(for_each(blocks(part), prepare, threads=self.threads))

    def round_on(
        self,
        device: DeviceVector,
        part: FieldSection,
        start: int,
        weight: float,
        randomness: Callable[[int], bytes],
    ) -> Iterator[tuple[int, BlockSummary]]:
        """The same on the device, from word `start` on."""
        factors, key = self._factors(part, weight), randomness(KEY_BYTES)
        made = device.round_to(
            part, start, base=self.base, local=self.local, factors=factors, key=key, threads=self.threads
        )
        for one in made:
            if not math.isfinite(one.largest):
                _refuse_not_finite(one.spec, self.base, self.local)
            yield one.index, BlockSummary(largest=one.largest * factors[one.index], clipped=one.clipped)

    def _factors(self, part: FieldSection, weight: float) -> list[float]:
        """What turns an element into steps, by scale."""
        return [weight * part.levels / scale for scale in self.encoding.scales]

    def split_to(
        self, part: FieldSection, words: NDArray[np.uint64], weight: float, randomness: Callable[[int], bytes]
    ) -> list[tuple[int, BlockSummary]]:
        """The same for a section with fractions."""
        factors = self._factors(part, weight)
        whole, fractions = split_words(words, part.fields)
        buffer, found = np.empty(BLOCK_FIELDS, np.float32), []
        for block in blocks(part):
            for span, delta, size in self._deltas(block, buffer):
                position = slice(span.position, span.position + span.size)
                factor = factors[span.index]
                clipped = split(
                    delta,
                    factor,
                    part.levels,
                    part.fraction_bits,
                    randomness=randomness,
                    whole=whole[position],
                    fractions=fractions[position],
                )
                found.append((span.index, BlockSummary(largest=size * factor, clipped=clipped)))
        return found

    def rotate_to(
        self, part: FieldSection, packed: NDArray[np.uint64], weight: float, randomness: Callable[[int], bytes]
    ) -> Iterator[tuple[int, BlockSummary]]:
        """The same for a section whose units are rotated first, and of which only a part is sent."""
        factors = self._factors(part, weight)
        shared = StochasticRounder(field_bits=part.field_bits, levels=part.levels, randomness=randomness)

        def prepare() -> Callable[[Unit], tuple[int, BlockSummary]]:
            rounder, rotation = shared.for_thread(), Rotation(self.encoding.rotation)

            def round_unit(unit: Unit) -> tuple[int, BlockSummary]:
                flat = rotation.matrix(unit)
                self._write_unit(unit, flat[: unit.size])
                rotation.rotate(unit, flat)
                # That of all coordinates: the next scale has to cover those that are not sent now.
                largest = largest_magnitude(flat)
                sent = flat.reshape(unit.rows, -1)[rotation.subset(unit)].reshape(-1)
                rounder.begin(unit.number)
                fields, summary = rounder.round(sent, factors[unit.index], largest=largest)
                padded = np.full(unit.fields, part.levels, fields.dtype)
                padded[: unit.values] = fields
                pack(packed, part.field_bits, unit.position, padded)
                return unit.index, summary

            return round_unit

        # More threads take twice the processor and longer: a unit's calls are too short to share the interpreter.
        return iter(for_each(part.units(), prepare, threads=1))

    def _write_unit(self, unit: Unit, out: NDArray[np.float32]) -> None:
        """The update, local - base, of the elements of a unit."""
        span = Span(index=unit.index, spec=unit.spec, start=unit.start, stop=unit.stop, position=unit.position)
        write_delta(span, self.base, self.local, out)
        release_every(unit.number, _RELEASE_UNITS, self.base.release, self.local.release)

    def _deltas(
        self, block: FieldBlock, buffer: NDArray[np.float32]
    ) -> Iterator[tuple[Span, NDArray[np.float32], float]]:
        """Each span of a block, its values [span.size] in `buffer` [BLOCK_FIELDS], and their largest magnitude."""
        for span in block.spans:
            delta = buffer[: span.size]
            size = write_delta(span, self.base, self.local, delta)
            yield span, delta, size
        block.release(self.base.release, self.local.release)


def write_delta(span: Span, base: ModelState, local: ModelState, out: NDArray[np.float32]) -> float:
    """Write the update, local - base, of one span to `out` ([span.size], float32); returns the largest magnitude.

    The difference of float64 tensors is taken in float64. Raises EncodingError that names the
    tensor when it is not finite.
    """
    name, start, stop = span.spec.name, span.start, span.stop
    with np.errstate(over="ignore", invalid="ignore"):
        if span.spec.dtype == "BF16":
            local.float32(name, start, stop, out=out)
            np.subtract(out, base.float32(name, start, stop), out=out)
        else:
            _subtract(local[name], base[name], start, stop, out)
    size = largest_magnitude(out)
    if not math.isfinite(size):
        _refuse_not_finite(span.spec, base, local)
    return size


def _subtract(local: NDArray[Any], base: NDArray[Any], start: int, stop: int, out: NDArray[np.float32]) -> None:
    """Write (local - base)[start:stop] of the flattened tensors to `out`, computed in float32 or wider."""
    wide = np.promote_types(local.dtype, np.float32)
    np.subtract(local.reshape(-1)[start:stop], base.reshape(-1)[start:stop], out=out, dtype=wide, casting="same_kind")


def _refuse_not_finite(spec: TensorSpec, base: ModelState, local: ModelState) -> None:
    """Say which side is at fault."""
    starts = range(0, spec.size, BLOCK_FIELDS)
    if not all(np.isfinite(base.float32(spec.name, start, start + BLOCK_FIELDS)).all() for start in starts):
        raise EncodingError(
            f"tensor {spec.name!r} of the global model holds NaN or infinity; start from another model",
            check="global-not-finite",
        )
    raise EncodingError(
        f"tensor {spec.name!r} holds NaN or infinity after training, or changed by more than float32 holds; "
        "lower the learning rate, clip gradients, or look for bad input",
        check="not-finite",
    )
