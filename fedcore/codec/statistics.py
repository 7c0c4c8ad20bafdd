"""Scales from magnitudes: what a round reveals about its updates, and what the next one uses.

A scale must cover the largest |w * delta| of any client, but only sums over clients are known. Each
client therefore adds, for each tensor, its largest value a and a^4. The sums bound the maximum from
above, sum(a) >= max(a) and sum(a^4)^(1/4) >= max(a), the second within a factor n^(1/4): 1.7 for 8
clients, 3.2 for 100. Both are rounded up, so they stay bounds. a^4 has resolution only near the
current scale; far below it, as after the first round, sum(a) takes over.

The next scale is the smaller bound times a headroom, so an update may double from one round to the
next without being clipped; what exceeds the scale is clipped, counted, and given more room.

Two power sums are more than one: with two clients alone they determine both maxima (without telling
whose they are). A cohort of two learns each other's update from the sum anyway.
"""

from __future__ import annotations

import dataclasses
import math
import statistics as descriptive
from dataclasses import dataclass

from fedcore.codec.encoding import MAX_SCALE, MIN_SCALE, CodecSettings, Encoding, carry_bits
from fedcore.errors import PeerError, UsageError
from fedcore.state import Layout

HEADROOM = 2.0
"""How far an update may grow from one round to the next without being clipped."""

HEADROOM_CLIPPED = 4.0
"""The same after a round that clipped: the tensor is known to be growing."""

WIDE_BITS = 32
"""Field width while magnitudes are unknown."""

_POWER = 4
_SIZE_LIMIT = 2.0**10
_POWER_LIMIT = 2.0**4
_SUM_BITS = 61
_COARSEST_STEP = 1 / 32


def size_fraction_bits(n_max: int) -> int:
    """Bits after the point of a word in `sizes`: n_max values up to 2^10 stay below 2^62."""
    return _SUM_BITS - 10 - carry_bits(n_max)


def power_fraction_bits(n_max: int) -> int:
    """Bits after the point of a word in `powers`: n_max values up to 2^16 stay below 2^62."""
    return _SUM_BITS - 16 - carry_bits(n_max)


def size_word(ratio: float, n_max: int) -> int:
    """One client's word in `sizes`: its largest |w * delta| over the scale, rounded up."""
    return _rounded_up(min(ratio, _SIZE_LIMIT), size_fraction_bits(n_max))


def power_word(ratio: float, n_max: int) -> int:
    """One client's word in `powers`: the fourth power of the same, rounded up."""
    if ratio == 0:
        return 0
    # The fourth power of a tiny ratio underflows to zero, which must not read as silence.
    return max(1, _rounded_up(min(ratio, _POWER_LIMIT) ** _POWER, power_fraction_bits(n_max)))


def _rounded_up(value: float, fraction_bits: int) -> int:
    return math.ceil(math.ldexp(value, fraction_bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What the sum of one round says about magnitudes; one entry for each float tensor.

    scales
        The scales that the round used.
    sizes
        Sum over the survivors of the largest |w * delta|, rounded up.
    peaks
        Upper bound on the largest |w * delta| of any survivor.
    measured
        Whether the peak is the tight bound, the one from the fourth powers.
    clipped
        Elements that exceeded the scale, over all survivors.
    shrunk
        Survivors whose update the L2 clip shrank.
    """

    survivors: int
    examples: int
    field_bits: int
    scales: tuple[float, ...]
    sizes: tuple[float, ...]
    peaks: tuple[float, ...]
    measured: tuple[bool, ...]
    clipped: tuple[int, ...]
    shrunk: int


def read_statistics(
    encoding: Encoding,
    *,
    survivors: int,
    examples: int,
    sizes: list[int],
    powers: list[int],
    clipped: list[int],
    shrunk: int,
) -> Statistics:
    """Statistics from the summed words. Raises PeerError when a sum is more than clients can send."""
    size_bits, power_bits = size_fraction_bits(encoding.n_max), power_fraction_bits(encoding.n_max)
    totals, peaks, measured = [], [], []
    for index, spec in enumerate(encoding.floats):
        within = (
            sizes[index] <= survivors * size_word(math.inf, encoding.n_max)
            and powers[index] <= survivors * power_word(math.inf, encoding.n_max)
            and clipped[index] <= survivors * spec.size
        )
        if not within:
            raise PeerError(
                f"the statistics of tensor {spec.name!r} are out of range: a client sent a malformed update"
            )
        scale = encoding.scales[index]
        size = math.ldexp(sizes[index], -size_bits) * scale
        tight = _fourth_root_bound(powers[index], power_bits) * scale
        totals.append(size)
        peaks.append(min(size, tight))
        measured.append(tight <= size)
    if shrunk > survivors:
        raise PeerError("more clients than survived report a clipped update: one sent a malformed one")
    return Statistics(
        survivors=survivors,
        examples=examples,
        field_bits=encoding.field_bits,
        scales=encoding.scales,
        sizes=tuple(totals),
        peaks=tuple(peaks),
        measured=tuple(measured),
        clipped=tuple(clipped),
        shrunk=shrunk,
    )


def _fourth_root_bound(word: int, fraction_bits: int) -> float:
    """sum(a^4)^(1/4) from its word; infinite when a term may have hit its limit."""
    total = math.ldexp(word, -fraction_bits)
    return math.inf if total >= _POWER_LIMIT**_POWER else total ** (1 / _POWER)


def first_encoding(settings: CodecSettings, layout: Layout | None, n_max: int) -> Encoding:
    """The encoding of a round before which no magnitudes are known, or of one with metrics only.

    Wide fields and a generous scale, so that nothing is clipped or crushed for want of knowledge.
    Raises EncodingError for settings that cannot work for `n_max` clients.
    """
    floats = layout.floats if layout else ()
    return Encoding(
        settings=settings,
        layout=layout,
        n_max=n_max,
        field_bits=WIDE_BITS if floats else settings.field_bits,
        scales=(float(settings.first_scale),) * len(floats),
    )


def next_encoding(settings: CodecSettings, layout: Layout, n_max: int, statistics: Statistics) -> Encoding:
    """The encoding of a round of up to `n_max` clients after one with these statistics.

    Clients that dropped out or are new are assumed to be like the survivors: a bound on the
    fourth powers grows with the number of clients to the 1/4.

    A silent tensor (frozen, or all zero) says nothing; it gets the median scale of the others, the
    best guess for when it changes again. Zeros are exact at any scale, so the guess costs nothing until
    then. Where every tensor was silent, scales and width stay.

    Fields stay wide for one more round where a peak is only the loose bound, sum(a), and narrow
    fields would make a step coarser than 1/32 of the mean client's largest value: in large cohorts
    after the first round.
    """
    if len(statistics.scales) != len(layout.floats):
        raise UsageError("the statistics belong to a model with other tensors")
    spoke = [size > 0 for size in statistics.sizes]
    if not any(spoke):
        scales, bits = statistics.scales, statistics.field_bits
    else:
        scales = _grown_scales(statistics, spoke, n_max)
        bits = settings.field_bits
    encoding = Encoding(settings=settings, layout=layout, n_max=n_max, field_bits=bits, scales=scales)
    if any(_is_coarse(encoding, statistics, index) for index in range(len(scales)) if spoke[index]):
        encoding = dataclasses.replace(encoding, field_bits=WIDE_BITS)
    return encoding


def _grown_scales(statistics: Statistics, spoke: list[bool], n_max: int) -> tuple[float, ...]:
    """Peaks times headroom; the median of these for silent tensors."""
    absent = (n_max / statistics.survivors) ** (1 / _POWER)
    scales = []
    for peak, clipped in zip(statistics.peaks, statistics.clipped, strict=True):
        headroom = HEADROOM_CLIPPED if clipped else HEADROOM
        scales.append(min(max(peak * headroom * max(absent, 1.0), MIN_SCALE), MAX_SCALE))
    middle = descriptive.median_low([scale for scale, loud in zip(scales, spoke, strict=True) if loud])
    return tuple(scale if loud else middle for scale, loud in zip(scales, spoke, strict=True))


def _is_coarse(encoding: Encoding, statistics: Statistics, index: int) -> bool:
    """Whether a loosely bounded tensor would lose too much to the width of the fields."""
    mean = statistics.sizes[index] / statistics.survivors
    return not statistics.measured[index] and encoding.step(index) > mean * _COARSEST_STEP
