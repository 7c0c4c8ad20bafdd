"""Pearson's chi-squared test."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ChiSquared:
    """Pearson's chi-squared test of counts, without a correction; NaN if there is nothing to test."""

    statistic: float = math.nan
    degrees: int = 0
    p: float = math.nan


def chi_squared(counts: NDArray[np.float64]) -> ChiSquared:
    """The test of counts [values, groups], without values and groups that have none."""
    from scipy.stats import chi2_contingency

    used = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    if min(used.shape) < 2:
        return ChiSquared()
    result = chi2_contingency(used, correction=False)
    return ChiSquared(float(result.statistic), int(result.dof), float(result.pvalue))
