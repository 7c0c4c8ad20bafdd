"""Privacy accounting: each exchange is as private as a Gaussian mechanism, and so are all of them together.

Neighbours are two runs that differ in one client: its update is whatever it is, or zero; its noise share stays. The
cohort itself is public, so this is what adding or removing a client means here (Kairouz, Liu, Steinke 2021, section 2).

All figures are in steps of the grid to which updates are rounded: a client's update is an integer vector whose norm is
checked after rounding, so the sensitivity holds exactly, whatever floating point did before. A sum with discrete noise
is mu-Gaussian differentially private (Dong, Roth, Su 2022) for a mu that docs/explanation/accounting.md derives.
dp-accounting converts the mu of all exchanges to epsilon without loss (Balle and Wang 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import StrictFloat, StrictInt

from fedcore.codec.privacy.noise import MECHANISMS, Mechanism, noise_bound, table_distance
from fedcore.errors import ConfigurationError, EncodingError
from fedcore.system.plain_json import NO_OTHER_KEYS

ROUNDING_BETA = 2.0**-32
"""Chance that a rounded update is longer than its bound and is rounded again; the bias of the mean is of this order."""

MIN_SCALE = 1 << 10
MAX_SCALE = 1 << 22
_STEPS_PER_ROOT = 8


def grid_scale(dimension: int) -> int:
    """Steps in the clipping norm: the smallest power of two that is at least 8 sqrt(dimension) and 1024.

    Rounding then adds less than 1.1 % to the squared sensitivity, and the noise is hundreds of steps wide, so that its
    discreteness costs nothing worth mentioning.
    """
    scale = MIN_SCALE
    while scale < _STEPS_PER_ROOT * math.sqrt(dimension):
        scale *= 2
    return scale


def rounded_norm_squared(scale: int, dimension: int, beta: float = ROUNDING_BETA) -> int:
    """Largest squared L2 norm of an update after rounding, in steps; the update has at most norm `scale` before.

    The smaller of two bounds: every coordinate moves by less than one step; or, except with probability `beta`,
    c^2 + d / 4 + sqrt(2 log(1 / beta)) (c + sqrt(d) / 2) (Kairouz, Liu, Steinke 2021, Theorem 1 and Proposition 22,
    with the granularity as the unit). A client rounds again until the bound holds.
    """
    root = math.sqrt(dimension)
    sure = (scale + root) ** 2
    likely = scale**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (scale + root / 2)
    return math.floor(min(sure, likely))


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One noised sum.

    mechanism
        Distribution of each client's noise share.
    variance
        Variance of one share, in squared steps (of the discrete Gaussian: sigma^2).
    shares
        Number of independent shares that are in the sum at least, and that nobody else knows.
    scale
        Steps in the clipping norm.
    dimension
        Coordinates of the vector.

    Raises EncodingError for parameters that are no mechanism.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    mechanism: Mechanism
    variance: StrictFloat
    shares: StrictInt
    scale: StrictInt
    dimension: StrictInt

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise EncodingError(f"the noise mechanism is none of {', '.join(MECHANISMS)}")
        for name, low, high in (("shares", 1, 1 << 28), ("scale", 1, MAX_SCALE), ("dimension", 1, 1 << 40)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise EncodingError(f"{name} of the noise is {value!r}; use a whole number from {low} to {high}")
        if type(self.variance) is not float:
            raise EncodingError("the variance of the noise is not a number with a point")
        noise_bound(self.mechanism, self.variance)

    @property
    def norm_squared(self) -> int:
        """Square of the L2 sensitivity, in squared steps."""
        return rounded_norm_squared(self.scale, self.dimension)

    @property
    def total_variance(self) -> float:
        """Variance of the noise in the smallest sum, in squared steps."""
        return self.variance * self.shares

    @property
    def distance(self) -> float:
        """Total variation distance of the noise in the smallest sum, all draws together, from the ideal."""
        return self.dimension * self.shares * table_distance(noise_bound(self.mechanism, self.variance))

    @property
    def mu_squared(self) -> float:
        """Square of the mu for which the sum is mu-Gaussian differentially private; infinite if that is not known."""
        total = self.total_variance
        if self.mechanism == "discrete-gaussian" and (tau := sum_distance(self.variance, self.shares)):
            total = 1 / (1 / total + 4 * tau)
        return self.norm_squared / (total - DISCRETE_LOSS) if total >= LEAST_VARIANCE else math.inf


LEAST_VARIANCE = 8.0
"""Variance of a sum's noise, in squared steps, below which the comparison with continuous noise is not proved."""

DISCRETE_LOSS = 2.0
"""How much variance discrete noise loses against continuous noise of equal privacy, in squared steps, at most."""


def sum_distance(variance: float, shares: int) -> float:
    """The tau of Kairouz, Liu, Steinke 2021, Theorem 1: how far a sum of discrete Gaussians is from one.

    10 * sum over k from 1 to n - 1 of e^(-2 pi^2 sigma^2 k / (k + 1)), a bound on log ratios; 0 for one share.
    """
    if shares == 1:
        return 0.0
    # The terms fall with k: the first few singly, the others by the largest of them.
    exact = min(shares - 1, 64)
    total = sum(math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, exact + 1))
    rest = shares - 1 - exact
    return 10 * (total + rest * math.exp(-2 * math.pi**2 * variance * (exact + 1) / (exact + 2)))


_COARSEST_DIMENSION = (MIN_SCALE // 8) ** 2
_SAMPLER_SHARE = 2.0**-10
_DIGITS = 4


class Accountant:
    """Adds up releases. Epsilon is that of (epsilon, delta)-differential privacy of one client, all exchanges together.

    The squares of mu add up (Dong, Roth, Su 2022, Corollary 2), also if later models, and how much noise there is in
    their sums, depend on earlier sums (Smith and Thakurta 2022). The noise that is really drawn differs from the ideal
    by `Release.distance`. A mechanism within t of an (epsilon, delta)-private one is
    (epsilon, delta + (1 + e^epsilon) t)-private, so 2^-10 of delta is set aside for it; if that is not enough
    (epsilon above about 35, which protects nobody), epsilon is infinite.
    """

    __slots__ = ("_distance", "_mu_squared")

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._mu_squared = 0.0
        self._distance = 0.0
        for release in releases:
            self.add(release)

    def add(self, release: Release, times: int = 1) -> None:
        """Count a release `times` times."""
        self._mu_squared += times * release.mu_squared
        self._distance += times * release.distance

    def together(self, other: Accountant) -> Accountant:
        """All releases of both."""
        both = Accountant()
        both._mu_squared = self._mu_squared + other._mu_squared
        both._distance = self._distance + other._distance
        return both

    def epsilon(self, delta: float, *, further: Release | None = None, times: int = 1) -> float:
        """Epsilon at `delta`, also with `further` counted `times` times; 0 if nothing was released."""
        if further is not None:
            after = Accountant()
            after._mu_squared, after._distance = self._mu_squared, self._distance
            after.add(further, times)
            return after.epsilon(delta)
        if not self._mu_squared or math.isinf(self._mu_squared):
            return self._mu_squared
        # Takes a second the first time, and most commands never need it.
        from dp_accounting import get_epsilon_gaussian

        epsilon = float(get_epsilon_gaussian(self._mu_squared**-0.5, delta * (1 - _SAMPLER_SHARE)))
        affordable = delta * _SAMPLER_SHARE / self._distance - 1
        return epsilon if affordable > 0 and epsilon <= math.log(affordable) else math.inf


def calibrated_multiplier(mechanism: Mechanism, *, epsilon: float, delta: float, exchanges: int) -> float:
    """The least noise multiplier, to four digits, for which so many exchanges cost at most `epsilon` at `delta`.

    For the coarsest grid that `grid_scale` gives, relative to its sensitivity: any model's exchange costs that or less.
    Raises ConfigurationError if no reasonable noise is enough.
    """

    def cost(multiplier: float) -> float:
        return Accountant().epsilon(delta, further=coarsest_release(mechanism, multiplier), times=exchanges)

    low, high = 2.0**-6, 2.0**-6
    while cost(high) > epsilon:
        low, high = high, 2 * high
        if high > 2**16:
            raise ConfigurationError(
                f"no reasonable noise keeps {exchanges} exchanges within epsilon {epsilon:g} at delta {delta:g}"
            )
    unit = 10.0 ** (math.floor(math.log10(high)) + 1 - _DIGITS)
    first, last = math.floor(low / unit), math.ceil(high / unit)
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if cost(middle * unit) > epsilon else (first, middle)
    return round(last * unit, _DIGITS - 1 - math.floor(math.log10(high)))


def coarsest_release(mechanism: Mechanism, multiplier: float) -> Release:
    """The dearest exchange with this noise multiplier: the smallest scale, with as many coordinates as it serves."""
    variance = share_variance(multiplier, scale=MIN_SCALE, dimension=_COARSEST_DIMENSION, shares=1)
    return Release(mechanism=mechanism, variance=variance, shares=1, scale=MIN_SCALE, dimension=_COARSEST_DIMENSION)


def share_variance(multiplier: float, *, scale: int, dimension: int, shares: int) -> float:
    """Variance of one of `shares` noise shares, in squared steps.

    The noise multiplier is the standard deviation of the noise in the smallest sum over the sensitivity after rounding,
    so equal multipliers cost the same for models of any size.
    """
    return multiplier**2 * rounded_norm_squared(scale, dimension) / shares
