"""One client's update to words."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS
from fedcore.codec.encoding import Encoding, ScaleGroup
from fedcore.codec.encodings import AnyEncoding
from fedcore.codec.fields import (
    encode_integers,
    field_dtype,
    pack,
)
from fedcore.codec.gpu.device import DeviceVector
from fedcore.codec.locks import apply_lock, draw_key, forgotten_mask, mask_of, power_words
from fedcore.codec.metrics import MetricValue, encode_metrics, lost_word
from fedcore.codec.names import names_words
from fedcore.codec.settings import MAX_SCALE
from fedcore.codec.update import FloatUpdate
from fedcore.errors import EncodingError, UsageError
from fedcore.secagg import MaskTerm
from fedcore.state import ModelState
from fedcore.state.mapped import give_back

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

    def loaded(self, device: DeviceVector | None) -> Self:
        """The same; if there is a device, it gets a copy of the words, whose masks it adds in the time of others."""
        if device:
            device.load(self.words, 0, self.words.size)
        return self


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
    tell that, and which scales it exceeds by how much, and nothing else.

    Raises EncodingError, naming the tensor or metric, for NaN and infinity, for tensors that do not
    match the layout, for examples or metrics out of range, for an update of which too much would
    be clipped, and for one that no scale holds.
    """
    count = _check_examples(encoding, examples)
    words = _cleared(encoding, out)
    sections = encoding.sections
    names, metric_words, digits = encode_metrics(encoding, metrics, count, randomness=randomness)
    if encoding.metrics is None:
        words[sections["names"]] = names_words(names, encoding.n_max, encoding.names_room)
    words[sections["examples"]] = count
    for section, used in ((sections["metrics"], metric_words), (sections["digits"], digits)):
        words[section.start : section.start + len(used)] = used
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
        update = FloatUpdate(encoding=encoding, base=base, local=local, threads=threads)
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
        _lock(encoding, words, forgotten_mask(randomness), threads, device)
    return Encoded(words=words, clipped=clipped, shrunk=shrunk, overflowed=overflowed)


def encode_nothing(
    encoding: Encoding,
    *,
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None = None,
    device: DeviceVector | None = None,
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
            packed = words[sections[part.name]]
            pack(packed, part.field_bits, start, zeros[: part.fields - start])
            give_back(packed[start // part.per_word :][: BLOCK_FIELDS // part.per_word])
    key = draw_key(randomness)
    words[sections["keys"]] = power_words(key, encoding.failures, encoding.n_max, randomness)
    apply_lock(words[: sections["keys"].start], sections["failed"], [mask_of(key)])
    return Encoded(words=words, clipped=0, shrunk=False, overflowed=False).loaded(device)


def _lock(
    encoding: Encoding, words: NDArray[np.uint64], mask: MaskTerm, threads: int, device: DeviceVector | None
) -> None:
    """Cover the words by a mask, all but those that are never locked and the keys."""
    end = encoding.sections["keys"].start
    if device:
        device.apply_lock(encoding.unlocked, end, [mask])
    else:
        apply_lock(words[:end], encoding.unlocked, [mask], threads=threads)


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
    update: FloatUpdate,
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
    words[sections["peaks"]] = [
        word
        for ladder, ratio in zip(encoding.ladders, unlocked, strict=True)
        for word in ladder.element(ladder.rung_of(ratio), randomness)
    ]
    if encoding.settings.clips:
        words[sections["clipped"]] = clipped
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
