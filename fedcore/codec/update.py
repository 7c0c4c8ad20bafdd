"""The floating point tensors of one client's update, rounded into fields block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS, FieldBlock, FieldSection, Span, blocks, for_each, release_every
from fedcore.codec.encoding import Encoding
from fedcore.codec.fields import (
    KEY_BYTES,
    BlockSummary,
    StochasticRounder,
    field_view,
    largest_magnitude,
    pack,
    split,
    split_words,
)
from fedcore.codec.gpu.device import DeviceVector
from fedcore.codec.rotation import Rotation, Unit
from fedcore.errors import EncodingError
from fedcore.state import ModelState, TensorSpec
from fedcore.state.mapped import give_back

_RELEASE_UNITS = 12
"""As many elements as between two releases of blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatUpdate:
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
        lost, total = zip(*chain.from_iterable(parts), strict=True)
        return min(math.sqrt(math.fsum(lost) / math.fsum(total)), 1.0)

    def _lost(self, weight: float) -> Callable[[FieldBlock], tuple[float, float]]:
        buffer = np.empty(BLOCK_FIELDS, np.float32)

        def squares(block: FieldBlock) -> tuple[float, float]:
            lost = total = 0.0
            for span, delta, _ in self._deltas(block, buffer):
                sizes = np.abs(delta.astype(np.float64)) * weight
                beyond = np.maximum(sizes - self.encoding.scales[span.index], 0.0)
                total += float(np.square(sizes, out=sizes).sum())
                lost += float(np.square(beyond, out=beyond).sum())
            return lost, total

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
                give_back(packed[block.number * BLOCK_FIELDS // part.per_word :][: BLOCK_FIELDS // part.per_word])
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
        steps, fractions = split_words(words, part.fields)
        buffer, summaries = np.empty(BLOCK_FIELDS, np.float32), []
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
                    offset_steps=steps[position],
                    fractions=fractions[position],
                )
                summaries.append((span.index, BlockSummary(largest=size * factor, clipped=clipped)))
                give_back(steps[position])
                give_back(fractions[position])
        return summaries

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
                give_back(packed[unit.position // part.per_word :][: unit.fields // part.per_word])
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
