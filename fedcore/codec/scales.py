"""The rule of scales: how each follows from the round before, and what a client checks of it without knowing a sum.

A server that were free to choose them could ask for the same update at many scales, and read single elements off where
each begins to be clipped. So scales are powers of two; the first exchange of a model in a run has the configured one;
in the two after it they may fall freely, to what those before could measure, and later by half an exchange at most.
They may rise at any time. What keeps a scan of the scales that are left empty-handed is that a client sends no update
of which much would be clipped (`encoder`).

The next scale is the bound on the largest client times a headroom, so an update may double from one round to the next
without being clipped; what exceeds the scale is clipped, counted, and given more room. So is what failed, since the
failure may have been for want of room: scales double while clients fail, up to a limit.
"""

from __future__ import annotations

import dataclasses
import statistics as descriptive
from dataclasses import dataclass

from pydantic import StrictFloat, StrictInt

from fedcore.codec.encoding import MAX_SCALE, MIN_SCALE, WIDE_BITS, CodecSettings, Encoding, scale_groups
from fedcore.codec.names import MetricName
from fedcore.codec.statistics import POWER, Statistics, power_of_two
from fedcore.errors import EncodingError, UsageError
from fedcore.state import Layout

HEADROOM = 2.0
"""How far an update may grow from one round to the next without being clipped."""

HEADROOM_CLIPPED = 4.0
"""The same after a round that clipped, or in which a client failed: the tensor may be growing."""

MOST_HEADROOM = 64.0
"""Up to so much, in the end, while clients fail in one round after another."""

FREE_FALLS = 2
"""Exchanges whose scales may be as low as the server likes: that after the first, which knows a loose bound in large
cohorts, and that after it, which knows the tight one."""

_COARSEST_STEP = 1 / 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """What a client remembers of the scales of one model in one run.

    exchange: the number of the one that it saw last. falls: how many it saw with other scales than a first one.
    """

    exchange: StrictInt
    scales: tuple[StrictFloat, ...]
    falls: StrictInt


def check_scales(encoding: Encoding, memory: ScaleMemory | None, *, exchange: int) -> ScaleMemory:
    """What to remember of an exchange whose scales keep the rule; raises EncodingError where they do not.

    `memory` is that of the same run and layout. Exchanges that this client was not asked for count, so a scale may have
    fallen by half for each of them. A client that is new to a run cannot know whether free falls were before.
    """
    for group, scale in zip(encoding.groups, encoding.scales, strict=True):
        if power_of_two(scale) != scale:
            raise EncodingError(f"the scale of {group.label} is {scale:g}, which is no power of two")
    first = is_first(encoding)
    if memory is None and exchange == 1 and not first:
        raise EncodingError("the first exchange of a run needs first-scale for every tensor, and fields of 32 bits")
    falls = memory.falls if memory is not None else 0
    if memory is not None and falls >= FREE_FALLS:
        least = 2.0 ** -max(exchange - memory.exchange, 0)
        for group, scale, last in zip(encoding.groups, encoding.scales, memory.scales, strict=True):
            if scale < last * least:
                raise EncodingError(
                    f"the scale of {group.label} is {scale:g} after {last:g}, more than half an exchange lower"
                )
    return ScaleMemory(exchange=exchange, scales=encoding.scales, falls=falls + (not first))


def is_first(encoding: Encoding) -> bool:
    """Whether the scales and the width are those of a first exchange."""
    widest = power_of_two(encoding.settings.first_scale)
    wide = encoding.field_bits == WIDE_BITS or not encoding.scales
    return wide and all(scale == widest for scale in encoding.scales)


def first_encoding(
    settings: CodecSettings,
    layout: Layout | None,
    n_max: int,
    *,
    metrics: tuple[MetricName, ...] | None = None,
    failures: int = 0,
) -> Encoding:
    """The encoding of a round before which no magnitudes are known, or of one with metrics only.

    Wide fields and a generous scale, so that nothing is clipped or crushed for want of knowledge.
    Raises EncodingError for settings that cannot work for `n_max` clients.
    """
    groups = scale_groups(layout)
    return Encoding(
        settings=settings,
        layout=layout,
        n_max=n_max,
        field_bits=WIDE_BITS if groups else settings.field_bits,
        scales=(power_of_two(settings.first_scale),) * len(groups),
        metrics=metrics,
        failures=failures,
    )


def next_encoding(
    settings: CodecSettings,
    layout: Layout,
    n_max: int,
    statistics: Statistics,
    *,
    settled: bool,
    metrics: tuple[MetricName, ...] | None = None,
    failures: int = 0,
) -> Encoding:
    """The encoding of a round of up to `n_max` clients after one with these statistics.

    Clients that dropped out or are new are assumed to be like the contributors: a bound on the fourth powers grows with
    the number of clients to the 1/4. settled: the free falls are used up, so no scale falls by more than half.
    failures: how many clients that contribute nothing the sum tolerates.

    A silent tensor (frozen, or all zero) says nothing; it gets the median scale of the others, the
    best guess for when it changes again. Zeros are exact at any scale, so the guess costs nothing until
    then. Where every tensor was silent, scales and width stay.

    Fields stay wide where a scale is larger than the last round alone would make it, or its peak only the loose bound,
    sum(a), and narrow fields would make a step coarser than 1/32 of the mean client's largest value: in large cohorts
    after the first round.
    """
    if len(statistics.scales) != len(scale_groups(layout)):
        raise UsageError("the statistics belong to a model with other tensors")
    spoke = [size > 0 for size in statistics.sizes]
    if not any(spoke):
        scales = needed = statistics.scales
        bits = statistics.field_bits
    else:
        needed = _needed_scales(statistics, spoke, n_max)
        scales = tuple(
            _within_rule(scale, last, failures=statistics.failures, settled=settled)
            for scale, last in zip(needed, statistics.scales, strict=True)
        )
        bits = settings.field_bits
    encoding = Encoding(
        settings=settings,
        layout=layout,
        n_max=n_max,
        field_bits=bits,
        scales=scales,
        metrics=metrics,
        failures=failures,
    )
    held = [scale > need for scale, need in zip(scales, needed, strict=True)]
    if any(_is_coarse(encoding, statistics, index, held[index]) for index in range(len(scales)) if spoke[index]):
        encoding = dataclasses.replace(encoding, field_bits=WIDE_BITS)
    return encoding


def _needed_scales(statistics: Statistics, spoke: list[bool], n_max: int) -> tuple[float, ...]:
    """Powers of two above peaks times headroom; the median of these for silent tensors."""
    absent = max((n_max / statistics.contributors) ** (1 / POWER), 1.0)
    scales = []
    for peak, clipped in zip(statistics.peaks, statistics.clipped, strict=True):
        headroom = HEADROOM_CLIPPED if clipped or statistics.failures else HEADROOM
        scales.append(power_of_two(min(max(peak * headroom * absent, MIN_SCALE), MAX_SCALE)))
    middle = descriptive.median_low([scale for scale, loud in zip(scales, spoke, strict=True) if loud])
    return tuple(scale if loud else middle for scale, loud in zip(scales, spoke, strict=True))


def _within_rule(needed: float, last: float, *, failures: int, settled: bool) -> float:
    """The scale that is taken: not below half of the last one; the double of it while clients fail, up to a limit."""
    if not settled:
        return needed
    if failures:
        return max(needed, min(2 * last, needed * MOST_HEADROOM / HEADROOM_CLIPPED, MAX_SCALE), last / 2)
    return max(needed, last / 2)


def _is_coarse(encoding: Encoding, statistics: Statistics, index: int, held: bool) -> bool:
    """Whether a tensor whose scale is larger than it need be would lose too much to the width of the fields."""
    mean = statistics.sizes[index] / statistics.contributors
    loose = held or not statistics.measured[index]
    return loose and not encoding.groups[index].small and encoding.step(index) > mean * _COARSEST_STEP
