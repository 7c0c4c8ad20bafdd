"""Composition of releases and what it means: Renyi divergences add up, dp-accounting converts the sum to epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConfigurationError
from fedcore.privacy.release import MIN_SCALE, Release, rounded_norm_squared
from fedcore.privacy.tables import Mechanism

ORDERS = (*range(2, 129), *range(136, 257, 8), 320, 384, 512, 768, 1024, 2048, 4096)
"""Orders of the Renyi divergence; whole numbers, since Skellam's bound is proved for these only."""

_COARSEST_DIMENSION = (MIN_SCALE // 8) ** 2
_SAMPLER_SHARE = 2.0**-10
_DIGITS = 4


class Accountant:
    """Adds up releases. Epsilon is that of (epsilon, delta)-differential privacy of one client, all exchanges together.

    Composition is adaptive: later models may depend on earlier sums (Mironov 2017, Proposition 1). The noise that is
    really drawn differs from the ideal by `Release.distance`. A mechanism within t of an (epsilon, delta)-private one
    is (epsilon, delta + (1 + e^epsilon) t)-private, so 2^-10 of delta is set aside for it; where that is not enough
    (epsilon above about 35, which protects nobody), epsilon is infinite.
    """

    __slots__ = ("_distance", "_rdp")

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._rdp: NDArray[np.float64] = np.zeros(len(ORDERS))
        self._distance = 0.0
        for release in releases:
            self.add(release)

    def add(self, release: Release, times: int = 1) -> None:
        """Count a release `times` times."""
        self._rdp = self._rdp + times * np.array([release.rdp(order) for order in ORDERS])
        self._distance += times * release.distance

    def epsilon(self, delta: float, *, further: Release | None = None, times: int = 1) -> float:
        """Epsilon at `delta`, also with `further` counted `times` times; 0 where nothing was released."""
        if further is not None:
            after = Accountant()
            after._rdp, after._distance = self._rdp, self._distance
            after.add(further, times)
            return after.epsilon(delta)
        if not self._rdp.any():
            return 0.0
        # Takes a second the first time, and most commands never need it.
        from dp_accounting import rdp

        epsilon, _ = rdp.compute_epsilon(ORDERS, self._rdp, delta * (1 - _SAMPLER_SHARE))
        affordable = delta * _SAMPLER_SHARE / self._distance - 1
        return float(epsilon) if affordable > 0 and epsilon <= math.log(affordable) else math.inf


def calibrated_multiplier(mechanism: Mechanism, *, epsilon: float, delta: float, exchanges: int) -> float:
    """The least noise multiplier, to four digits, for which so many exchanges cost at most `epsilon` at `delta`.

    For the coarsest grid that `grid_scale` gives, relative to its sensitivity: any model's exchange costs that or less.
    Raises ConfigurationError where no reasonable noise is enough.
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
