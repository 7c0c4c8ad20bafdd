"""Statistics of a round about the magnitudes of its updates.

A scale must cover the largest |w * delta| of any client, but only sums over clients are known. Each client therefore
adds, for each scale, its largest value a and, in cohorts of 8 and more, a^4. The sums bound the maximum from above,
sum(a) >= max(a) and sum(a^4)^(1/4) >= max(a), the second within a factor n^(1/4): 1.7 for 8 clients, 3.2 for 100. Both
are rounded up, so they stay bounds. a^4 has resolution only near the current scale; far below it, as after the first
round, sum(a) takes over. The sum tells what exceeds its scale as well, up to 2^14 times the scale; in a first exchange,
whose scale is generous, up to twice, and what is far below it the more exactly.

In a cohort below 8 both sums together would come close to telling each a, and with the sum of a lone element its sign;
so there is no a^4 there, sum(a) is bound enough, and a itself is rounded up to a power of two: what the sum tells of
any client is an exponent at most. Which scale follows is in `scales`.

Words that no honest clients can have summed up to are refused. If updates are not clipped (`CodecSettings.clips`)
those whose update fits its scales tell no more than the scales, so what is more is of those that say `large`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fedcore.codec.encoding import POWERS_FROM, Encoding
from fedcore.codec.widths import FIRST_BITS, carry_bits
from fedcore.errors import PeerError

T = TypeVar("T")

POWER = 4
_SIZE_RANGE = 14
_FIRST_RANGE = 1
"""Binary digits before the point: the largest |w * delta| over the scale that `sizes` can tell."""
_POWER_RANGE = 1
_SUM_BITS = 61
_CERTAIN = 4
"""Units of the fourth powers, for each client, from which on they say more than that they were rounded up."""


def size_range(field_bits: int) -> int:
    """Binary digits before the point of a word in `sizes`, by the width of the exchange's fields."""
    return _FIRST_RANGE if field_bits == FIRST_BITS else _SIZE_RANGE


def size_fraction_bits(n_max: int, digits: int = _SIZE_RANGE) -> int:
    """Bits after the point of a word in `sizes`: n_max values up to 2^digits stay below 2^62."""
    return _SUM_BITS - digits - carry_bits(n_max)


def power_fraction_bits(n_max: int) -> int:
    """Bits after the point of a word in `powers`: n_max values up to 2^4 stay below 2^62."""
    return _SUM_BITS - POWER * _POWER_RANGE - carry_bits(n_max)


def power_of_two(value: float) -> float:
    """The smallest power of two that is not below `value`; 0 for 0."""
    fraction, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - (fraction == 0.5)) if 0 < value < math.inf else value


def size_word(ratio: float, n_max: int, digits: int = _SIZE_RANGE) -> int:
    """One client's word in `sizes`: its largest |w * delta| over the scale, rounded up."""
    reported = power_of_two(ratio) if n_max < POWERS_FROM else ratio
    return _rounded_up(min(reported, 2.0**digits), size_fraction_bits(n_max, digits))


def power_word(ratio: float, n_max: int) -> int:
    """One client's word in `powers`: the fourth power of the same, rounded up."""
    if ratio == 0:
        return 0
    # The fourth power of a tiny ratio underflows to zero, which must not read as silence.
    return max(1, _rounded_up(min(ratio, 2.0**_POWER_RANGE) ** POWER, power_fraction_bits(n_max)))


def _rounded_up(value: float, fraction_bits: int) -> int:
    return math.ceil(math.ldexp(value, fraction_bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeStatistics:
    """What the sum of one round says about magnitudes; one entry for each scale.

    contributors
        Survivors that did not fail, of whom all of this is.
    failures
        Survivors that contributed nothing, whatever the reason.
    scales
        The scales that the round used.
    sizes
        Sum over the contributors of the largest |w * delta|, rounded up.
    peaks
        Upper bound on the largest |w * delta| of any contributor.
    measured
        Whether the peak is as good as it gets: from the fourth powers, if there are any.
    saturated
        Whether a client may have exceeded what its word in `sizes` can tell.
    clipped
        Elements that exceeded the scale, over all contributors; or, if elements are not clipped, contributors of
        which any did.
    shrunk
        Contributors whose update the L2 clip shrank; 0 for a sum that is locked.
    moved
        Root mean square of the sum of w * delta over the elements that changed; 0 for small tensors and if nothing
        is known. Empty for a sum that is locked.
    """

    contributors: int
    failures: int
    field_bits: int
    scales: tuple[float, ...]
    sizes: tuple[float, ...]
    peaks: tuple[float, ...]
    measured: tuple[bool, ...]
    saturated: tuple[bool, ...]
    clipped: tuple[int, ...]
    shrunk: int
    moved: tuple[float, ...] = ()


def joined(parts: Sequence[MagnitudeStatistics]) -> MagnitudeStatistics:
    """What the sums of disjoint groups say together, at one set of scales: as one sum over all of them would."""
    first = parts[0]

    def over(values: Callable[[MagnitudeStatistics], tuple[T, ...]], fold: Callable[[Iterable[T]], T]) -> tuple[T, ...]:
        return tuple(fold(column) for column in zip(*map(values, parts), strict=True))

    return (
        MagnitudeStatistics(
            contributors=sum(part.contributors for part in parts),
            failures=sum(part.failures for part in parts),
            field_bits=max(part.field_bits for part in parts),
            scales=over(lambda part: part.scales, max),
            sizes=over(lambda part: part.sizes, sum),
            peaks=over(lambda part: part.peaks, max),
            measured=over(lambda part: part.measured, all),
            saturated=over(lambda part: part.saturated, any),
            clipped=over(lambda part: part.clipped, sum),
            shrunk=sum(part.shrunk for part in parts),
            # Each group's sum has to be fine enough by itself, so the one that moved least decides.
            moved=over(lambda part: part.moved, min),
        )
        if len(parts) > 1
        else first
    )


def read_statistics(
    encoding: Encoding,
    *,
    contributors: int,
    failures: int,
    large: int,
    sizes: list[int],
    powers: list[int],
    clipped: list[int],
    shrunk: int,
) -> MagnitudeStatistics:
    """Statistics from the summed words. Raises PeerError when a sum is more than clients can send."""
    _check_counts(encoding, contributors, large, clipped, shrunk)
    digits = size_range(encoding.field_bits)
    size_bits, power_bits = size_fraction_bits(encoding.n_max, digits), power_fraction_bits(encoding.n_max)
    totals, peaks, measured = [], [], []
    for index, scale in enumerate(encoding.scales):
        _check_magnitudes(encoding, index, contributors, sizes[index], powers[index] if powers else 0, clipped[index])
        size = math.ldexp(sizes[index], -size_bits) * scale
        tight = _fourth_root_bound(powers[index], power_bits) * scale if powers else math.inf
        totals.append(size)
        peaks.append(min(size, tight))
        # Each word is rounded up: of a sum of a few units that is most.
        measured.append(not powers or (tight <= size and powers[index] >= _CERTAIN * contributors))
    return MagnitudeStatistics(
        contributors=contributors,
        failures=failures,
        field_bits=encoding.field_bits,
        scales=encoding.scales,
        sizes=tuple(totals),
        peaks=tuple(peaks),
        measured=tuple(measured),
        saturated=tuple(math.ldexp(word, -size_bits) >= 2.0**digits for word in sizes),
        clipped=tuple(clipped),
        shrunk=shrunk,
    )


def _check_counts(encoding: Encoding, contributors: int, large: int, clipped: list[int], shrunk: int) -> None:
    if large > (0 if encoding.settings.clips else contributors) or (large and sum(clipped) < large):
        raise PeerError(
            "more clients than can be report an update that is too large: one sent a malformed one",
            check="malformed-update",
        )
    if shrunk > contributors:
        raise PeerError(
            "more clients than survived report a clipped update: one sent a malformed one", check="malformed-update"
        )
    for group, count in zip(encoding.groups, clipped, strict=True):
        if count > (contributors * group.size if encoding.settings.clips else large):
            raise PeerError(
                f"the statistics of {group.label} are out of range: a client sent a malformed update",
                check="malformed-update",
            )


def _check_magnitudes(encoding: Encoding, index: int, contributors: int, size: int, power: int, clipped: int) -> None:
    n_max, digits = encoding.n_max, size_range(encoding.field_bits)
    beyond = contributors if encoding.settings.clips else clipped
    within = contributors - beyond
    largest = beyond * size_word(math.inf, n_max, digits) + within * size_word(1.0, n_max, digits)
    if size > largest or power > beyond * power_word(math.inf, n_max) + within * power_word(1.0, n_max):
        label = encoding.groups[index].label
        raise PeerError(
            f"the statistics of {label} are out of range: a client sent a malformed update", check="malformed-update"
        )


def _fourth_root_bound(word: int, fraction_bits: int) -> float:
    """sum(a^4)^(1/4) from its word; infinite when a term may have hit its limit."""
    total = math.ldexp(word, -fraction_bits)
    return math.inf if total >= 2.0 ** (POWER * _POWER_RANGE) else total ** (1 / POWER)
