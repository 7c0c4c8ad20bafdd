"""Noise that one site adds to its own sums over records, enough by itself to protect each of its records.

Neighbours are two data sets of one site that differ in one record, which is there or is not. The noise is not shared
out: what the site sends is (epsilon, delta)-differentially private, no matter who colludes with the server, and whether
or not it is masked. That costs the square root of the number of sites in the noise of their sum. See docs/adr/0023.

Values are rounded to the nearest step of a grid, and noise of whole steps is added: so what is added up over sites are
whole numbers, and no floating point number takes part in the noise. Between neighbours the values before rounding
differ by a vector of norm `bound` at most, and rounding moves each of d coordinates by half a step on either side: the
bound has sqrt(d) steps less than the scale of the release, whose sensitivity is therefore certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.privacy.accounting import Release, calibrated_multiplier, grid_scale, share_variance
from fedcore.codec.privacy.noise import BLOCK, Mechanism, NoiseSampler, noise_table
from fedcore.errors import ConfigurationError

_MECHANISM: Final[Mechanism] = "discrete-gaussian"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNoise:
    """The noise of one of `releases` sums that together keep (epsilon, delta) for each record of a site.

    Raises ConfigurationError for a budget that is none.

    dimension: values of a sum.
    bound: largest L2 norm by which one record changes them.
    """

    epsilon: float
    delta: float
    releases: int
    dimension: int
    bound: float

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)

    @property
    def scale(self) -> int:
        """Sensitivity after rounding, in steps."""
        return grid_scale(self.dimension)

    @property
    def step(self) -> float:
        """Size of one step, in units of the values."""
        return self.bound / (self.scale - math.ceil(math.sqrt(self.dimension)))

    @property
    def release(self) -> Release:
        """What one sum reveals."""
        multiplier = calibrated_multiplier(_MECHANISM, epsilon=self.epsilon, delta=self.delta, exchanges=self.releases)
        variance = share_variance(multiplier, scale=self.scale, dimension=self.dimension, shares=1)
        return Release(mechanism=_MECHANISM, variance=variance, shares=1, scale=self.scale, dimension=self.dimension)

    def on_grid(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """The values ([d], float64) in whole steps."""
        return np.rint(np.asarray(values, np.float64) / self.step).astype(np.int64)

    def add_to(self, values: NDArray[Any], randomness: Callable[[int], bytes]) -> NDArray[np.int64]:
        """Whole steps, int64 [d]: the values ([d], float64) on the grid, and noise. randomness(k): k secret bytes."""
        release = self.release
        sampler = NoiseSampler(noise_table(release.mechanism, release.variance), randomness)
        steps = self.on_grid(values)
        for start in range(0, steps.size, BLOCK):
            part = steps[start : start + BLOCK]
            part += sampler.draw(part.size)
        return steps


def check_budget(epsilon: float, delta: float) -> None:
    """Raise ConfigurationError unless this can be kept."""
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ConfigurationError(
            f"epsilon {epsilon:g} at delta {delta:g} is no privacy budget: epsilon is greater than 0, delta between 0 "
            "and 1 and best below 1 / records"
        )
