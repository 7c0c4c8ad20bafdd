"""The rule of scales: how each follows from the rounds before, and what a client checks of it without knowing a sum.

A server that were free to choose them could ask for the same update at many scales, and read single elements off where
each begins to be clipped. So scales are powers of two; the first exchange of a model in a run has fields of 32 bits or
more and a scale beyond usual updates; in the two after it they may fall freely, to what those before could measure, and
later by half an exchange at most. They may rise at any time. What keeps a scan of the scales that are left
empty-handed is that a client locks the sum, or sends no update of which much would be clipped (`encoder`).

The next scale is the largest that the clients' updates were of late, times a headroom. "Of late" fades slowly, by half
in eight exchanges: a large client that misses some finds room when it comes back. A peak so far above the updates since
that it would make narrow fields coarse fades by half in one, and fields are wide until it has. If fields are wide
the headroom is large as well, since their steps stay fine enough. An update that grows by more than the headroom all
the same is too large, and is asked for again at scales that hold it (`ScaleTrack.learn_overflow`). If it is clipped
instead, the next scales have more room; so have those after a failure, which may have been for want of room: scales
double while clients fail, up to a limit.

How far the last sum moved a tensor is known, so the fields are as wide as it takes that rounding stays well below that
(`coarseness`). If the next sum moves it by so much less that rounding is too much of it anyway, the same
clients are asked again, in wider fields (`ScaleTrack.learn_coarse`).
"""

from __future__ import annotations

import dataclasses
import statistics as descriptive
from dataclasses import dataclass

from pydantic import StrictFloat, StrictInt

from fedcore.codec.encoding import Encoding, ScaleGroup, scale_groups
from fedcore.codec.names import MetricName
from fedcore.codec.scaling.coarseness import least_typical
from fedcore.codec.scaling.statistics import MagnitudeStatistics, power_of_two
from fedcore.codec.scaling.widths import (
    FINE_BITS,
    FIRST_SCALE,
    FIRST_SMALL_SCALE,
    WIDE_BITS,
    WIDEST_BITS,
    carry_bits,
    first_form,
)
from fedcore.codec.settings import MAX_SCALE, MIN_SCALE, NARROW_BITS, CodecSettings
from fedcore.errors import EncodingError, UsageError
from fedcore.state import Layout

HEADROOM = 4.0
"""How far an update may grow beyond the largest of late in narrow fields, at least."""

WIDE_HEADROOM = 64.0
"""The same in fields that keep 2^15 levels or more of it."""

SMALL_HEADROOM = 2.0**12
"""How far a small element of an update may be beyond the largest of their mean of late."""

HEADROOM_CLIPPED = 8.0
"""At least so much after a round that clipped, or in which a client failed if updates are clipped."""

MOST_HEADROOM = 128.0
"""Up to so much, in the end, while clients fail in one round after another."""

FREE_FALLS = 2
"""Exchanges whose scales may be as low as the server likes: that after the first, which knows a loose bound in large
cohorts, and that after it, which knows the tight one."""

POWER = 4
"""If more clients take part than before, the largest of them is larger by their number to the power of 1 / POWER."""

_COARSEST_STEP = 1 / 32
_COARSEST_WIDE_STEP = 1 / 256
"""The same for 32-bit fields: about what 16 bits give if nothing holds a scale up."""
_RAISED = 4.0
"""A scale is held up if it is so many times what the updates need that are usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """What a client remembers of the scales of one model in one run.

    exchange: the number of the one that it saw last.
    falls: how many it saw with other scales than a first one.
    """

    exchange: StrictInt
    scales: tuple[StrictFloat, ...]
    falls: StrictInt


def check_scales(encoding: Encoding, memory: ScaleMemory | None, *, exchange: int) -> ScaleMemory:
    """What to remember of an exchange whose scales keep the rule; raises EncodingError if they do not.

    `memory` is that of the same run and layout. Exchanges that this client was not asked for count, so a scale may have
    fallen by half for each of them. A client that is new to a run cannot know whether free falls were before.
    """
    for group, scale in zip(encoding.groups, encoding.scales, strict=True):
        if power_of_two(scale) != scale:
            raise EncodingError(
                f"the scale of {group.label} is {scale:g}, which is no power of two", check="scale-power-of-two"
            )
    first = is_first(encoding)
    if memory is None and exchange == 1 and not first:
        raise EncodingError(
            f"the first exchange of a run needs scales of {FIRST_SCALE:g} or more, and {WIDE_BITS} bits or more",
            check="first-scales",
        )
    falls = memory.falls if memory is not None else 0
    if memory is not None and falls >= FREE_FALLS:
        least = 2.0 ** -max(exchange - memory.exchange, 0)
        for group, scale, last in zip(encoding.groups, encoding.scales, memory.scales, strict=True):
            if scale < last * least:
                raise EncodingError(
                    f"the scale of {group.label} is {scale:g} after {last:g}, more than half an exchange lower",
                    check="scale-too-low",
                )
    return ScaleMemory(exchange=exchange, scales=encoding.scales, falls=falls + (not first))


def is_first(encoding: Encoding) -> bool:
    """Whether the scales and the width are those of an exchange before which no magnitudes are known."""
    wide = encoding.field_bits >= WIDE_BITS or not encoding.scales
    return wide and all(scale >= FIRST_SCALE for scale in encoding.scales)


def first_encoding(
    settings: CodecSettings,
    layout: Layout | None,
    n_max: int,
    *,
    metrics: tuple[MetricName, ...] | None = None,
    failures: int = 0,
    rotation: str = "",
) -> Encoding:
    """The encoding of a round before which no magnitudes are known, or of one with metrics only.

    Wide fields and a generous scale, so that little is too large or crushed for want of knowledge; what still is,
    is asked for again (`ScaleTrack.learn_overflow`, `ScaleTrack.learn_coarse`).
    Raises EncodingError for settings that cannot work for `n_max` clients.
    """
    groups = scale_groups(layout)
    bits, scale = first_form(settings, n_max)
    scales = tuple(FIRST_SMALL_SCALE if group.small else scale for group in groups)
    return Encoding(
        settings=settings,
        layout=layout,
        n_max=n_max,
        field_bits=bits if groups else settings.field_bits,
        scales=scales,
        metrics=metrics,
        failures=failures,
        rotation=rotation,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInputs:
    """What the next scales follow from: the statistics of the last sum that opened, and of those before.

    lasting: for each scale the largest peak, as far as it has not faded.
    usual: the largest client's largest value, but for what is far larger than in the exchanges before; 0 if nobody
        knows.
    last: the scales that were asked with last.
    least: none is to be below these.
    settled: the free falls are used up, so no scale falls by more than half.
    """

    latest: MagnitudeStatistics
    lasting: tuple[float, ...]
    usual: tuple[float, ...]
    last: tuple[float, ...]
    least: tuple[float, ...]
    settled: bool


def next_encoding(
    settings: CodecSettings,
    layout: Layout,
    n_max: int,
    inputs: ScaleInputs,
    *,
    metrics: tuple[MetricName, ...] | None = None,
    failures: int = 0,
    rotation: str = "",
) -> Encoding:
    """The encoding of a round of up to `n_max` clients after others.

    Clients that dropped out or are new are assumed to be like the contributors: the largest of them grows with the
    number of clients to the 1/4.

    A large tensor that never changed (frozen, or all zero) says nothing; it gets the median scale of the others, the
    best guess for when it changes. Zeros are exact at any scale, so the guess costs nothing until then. Small ones that
    did not keep their scale.

    Fields are wide if a scale is much larger than usual updates would make it, or its peak only a loose bound, and
    narrow fields would make a step coarser than 1/32 of the largest client's largest value, as it usually is: while a
    large client is away, and with an outlier and after it. If
    32 bits are coarse as well they have 64. Fields of 12 bits and fewer are coarse at the best of scales, so there a
    scale that is too large at all makes them wide: 16 bits, for fewer of the coordinates. They are wide, too, if the
    last sum moved a tensor by so little that rounding would be more than an eighth of it.

    Args:
        failures: how many clients that contribute nothing the sum tolerates.
    """
    groups, latest = scale_groups(layout), inputs.latest
    if len(latest.scales) != len(groups):
        raise UsageError("the statistics belong to a model with other tensors", check="other-tensors")
    peaks = tuple(map(max, latest.peaks, inputs.lasting))
    needed = _needed_scales(settings, groups, n_max, inputs, peaks)
    scales = tuple(
        max(_within_rule(settings, need, last, inputs), least)
        for need, last, least in zip(needed, inputs.last, inputs.least, strict=True)
    )
    narrow = Encoding(
        settings=settings,
        layout=layout,
        n_max=n_max,
        field_bits=settings.field_bits,
        scales=scales,
        metrics=metrics,
        failures=failures,
        rotation=rotation,
    )
    return _wide_enough(narrow, inputs)


def headroom(settings: CodecSettings, group: ScaleGroup, n_max: int) -> float:
    """As large as the fields of `group` allow: they keep 2^15 levels, if they have them."""
    if group.small:
        return SMALL_HEADROOM
    return min(max(2.0 ** (settings.field_bits - carry_bits(n_max) - 1 - FINE_BITS), HEADROOM), WIDE_HEADROOM)


def _needed_scales(
    settings: CodecSettings,
    groups: tuple[ScaleGroup, ...],
    n_max: int,
    inputs: ScaleInputs,
    peaks: tuple[float, ...],
) -> tuple[float, ...]:
    """Powers of two above peaks times headroom; if a peak is zero the median of these, or what there was."""
    latest = inputs.latest
    absent = max((n_max / latest.contributors) ** (1 / POWER), 1.0)
    scales = []
    for group, peak, clipped in zip(groups, peaks, latest.clipped, strict=True):
        room = headroom(settings, group, n_max)
        if settings.clips and (clipped or latest.failures):
            room = max(room, HEADROOM_CLIPPED)
        scales.append(power_of_two(min(max(peak * room * absent, MIN_SCALE), MAX_SCALE)))
    large = [scale for group, scale, peak in zip(groups, scales, peaks, strict=True) if peak and not group.small]
    middle = descriptive.median_low(large) if large else None
    return tuple(
        scale if peak else last if group.small or middle is None else middle
        for group, scale, peak, last in zip(groups, scales, peaks, inputs.last, strict=True)
    )


def _within_rule(settings: CodecSettings, needed: float, last: float, inputs: ScaleInputs) -> float:
    """The scale that is taken: not below half of the last one; the double of it while clients fail, up to a limit.

    If updates are not clipped none fails for want of room.
    """
    if not inputs.settled:
        return needed
    if inputs.latest.failures and settings.clips:
        return max(needed, min(2 * last, needed * MOST_HEADROOM / HEADROOM_CLIPPED, MAX_SCALE), last / 2)
    return max(needed, last / 2)


def _wide_enough(encoding: Encoding, inputs: ScaleInputs) -> Encoding:
    """The same with the narrowest fields in which nothing usual is lost."""
    latest = inputs.latest
    changed = [index for index, peak in enumerate(latest.peaks) if peak and not encoding.groups[index].small]
    raised = [index for index in changed if _is_raised(encoding, inputs, index)]
    loose = [index for index in changed if not latest.measured[index]]
    if encoding.field_bits <= NARROW_BITS and (raised or loose):
        encoding = dataclasses.replace(encoding, field_bits=FINE_BITS)
    for bits, suspects, coarsest in (
        (WIDE_BITS, {*raised, *loose}, _COARSEST_STEP),
        (WIDEST_BITS, raised, _COARSEST_WIDE_STEP),
    ):
        if not any(encoding.step(index) > inputs.usual[index] * coarsest for index in suspects):
            break
        encoding = dataclasses.replace(encoding, field_bits=max(bits, encoding.field_bits))
    while _moves_too_little(encoding, latest.moved) and encoding.field_bits < WIDEST_BITS:
        encoding = wider(encoding)
    return encoding


def wider(encoding: Encoding) -> Encoding:
    """The same with the next width of fields above those that settings have."""
    bits = WIDE_BITS if encoding.field_bits < WIDE_BITS else WIDEST_BITS
    return dataclasses.replace(encoding, field_bits=bits)


def _moves_too_little(encoding: Encoding, moved: tuple[float, ...]) -> bool:
    """Whether rounding would be too much of a large tensor, if its sum were as large as that of the last exchange."""
    if encoding.rotation:
        return False
    least = least_typical(encoding.n_max)
    inputs = zip(encoding.groups, moved, strict=True) if moved else ()
    return any(
        size and not group.small and encoding.step(index) * least > size for index, (group, size) in enumerate(inputs)
    )


def _is_raised(encoding: Encoding, inputs: ScaleInputs, index: int) -> bool:
    """Whether a scale is far above what the usual updates need."""
    room = headroom(encoding.settings, encoding.groups[index], encoding.n_max)
    return encoding.scales[index] >= _RAISED * power_of_two(inputs.usual[index] * room)
