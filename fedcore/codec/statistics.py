"""What a round reveals about the magnitudes of its updates.

A scale must cover the largest |w * delta| of any client, but only sums over clients are known. Each client therefore
adds, for each scale, its largest value a and, in cohorts of 8 and more, a^4. The sums bound the maximum from above,
sum(a) >= max(a) and sum(a^4)^(1/4) >= max(a), the second within a factor n^(1/4): 1.7 for 8 clients, 3.2 for 100. Both
are rounded up, so they stay bounds. a^4 has resolution only near the current scale; far below it, as after the first
round, sum(a) takes over.

In a cohort below 8 both sums together would come close to telling each a, and with the sum of a lone element its sign;
so there is no a^4 there, sum(a) is bound enough, and a itself is rounded up to a power of two: what the sum tells of
any client is an exponent at most. Which scale follows is in `scales`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedcore.codec.encoding import POWERS_FROM, Encoding, carry_bits
from fedcore.errors import PeerError

POWER = 4
_SIZE_LIMIT = 2.0**10
_POWER_LIMIT = 2.0**4
_SUM_BITS = 61


def size_fraction_bits(n_max: int) -> int:
    """Bits after the point of a word in `sizes`: n_max values up to 2^10 stay below 2^62."""
    return _SUM_BITS - 10 - carry_bits(n_max)


def power_fraction_bits(n_max: int) -> int:
    """Bits after the point of a word in `powers`: n_max values up to 2^16 stay below 2^62."""
    return _SUM_BITS - 16 - carry_bits(n_max)


def power_of_two(value: float) -> float:
    """The smallest power of two that is not below `value`; 0 for 0."""
    fraction, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - (fraction == 0.5)) if 0 < value < math.inf else value


def size_word(ratio: float, n_max: int) -> int:
    """One client's word in `sizes`: its largest |w * delta| over the scale, rounded up."""
    told = power_of_two(ratio) if n_max < POWERS_FROM else ratio
    return _rounded_up(min(told, _SIZE_LIMIT), size_fraction_bits(n_max))


def power_word(ratio: float, n_max: int) -> int:
    """One client's word in `powers`: the fourth power of the same, rounded up."""
    if ratio == 0:
        return 0
    # The fourth power of a tiny ratio underflows to zero, which must not read as silence.
    return max(1, _rounded_up(min(ratio, _POWER_LIMIT) ** POWER, power_fraction_bits(n_max)))


def _rounded_up(value: float, fraction_bits: int) -> int:
    return math.ceil(math.ldexp(value, fraction_bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
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
        Whether the peak is the tight bound, the one from the fourth powers.
    clipped
        Elements that exceeded the scale, over all contributors.
    shrunk
        Contributors whose update the L2 clip shrank.
    """

    contributors: int
    failures: int
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
    contributors: int,
    failures: int,
    examples: int,
    sizes: list[int],
    powers: list[int],
    clipped: list[int],
    shrunk: int,
) -> Statistics:
    """Statistics from the summed words. Raises PeerError when a sum is more than clients can send."""
    size_bits, power_bits = size_fraction_bits(encoding.n_max), power_fraction_bits(encoding.n_max)
    totals, peaks, measured = [], [], []
    for index, group in enumerate(encoding.groups):
        within = (
            sizes[index] <= contributors * size_word(math.inf, encoding.n_max)
            and (not powers or powers[index] <= contributors * power_word(math.inf, encoding.n_max))
            and clipped[index] <= contributors * group.size
        )
        if not within:
            raise PeerError(f"the statistics of {group.label} are out of range: a client sent a malformed update")
        scale = encoding.scales[index]
        size = math.ldexp(sizes[index], -size_bits) * scale
        tight = _fourth_root_bound(powers[index], power_bits) * scale if powers else math.inf
        totals.append(size)
        peaks.append(min(size, tight))
        measured.append(tight <= size)
    if shrunk > contributors:
        raise PeerError("more clients than survived report a clipped update: one sent a malformed one")
    return Statistics(
        contributors=contributors,
        failures=failures,
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
    return math.inf if total >= _POWER_LIMIT**POWER else total ** (1 / POWER)
