"""What secure aggregation promises, and what it does not, in one sentence for people who run, watch or take part."""

from __future__ import annotations

import math
from typing import Final

from fedcore.wire.events import PrivacyTerms

_UPDATES: Final = "Masks hide each site's update, so that nobody sees more than sums over sites"
MASKS_ONLY: Final = (
    f"{_UPDATES}; they do not hide a record in a sum if somebody chose the model for it or few records dominate, which "
    "only noise bounds (dp-epsilon)"
)
"""Of sums without noise."""


def masks_and_noise(epsilon: float, delta: float) -> str:
    """Of sums with noise, all together.

    Args:
        epsilon: what they may reveal about a site; infinite if it grows without a limit.
        delta: at which that is stated.
    """
    bound = f"epsilon {epsilon:.4g} at delta {delta:g}"
    if math.isinf(epsilon):
        bound = f"the epsilon of each round, at delta {delta:g}, without a limit"
    return f"{_UPDATES}, and noise bounds what these reveal about a site and each of its records: {bound}"


def masks_and_row_noise(epsilon: float, delta: float) -> str:
    """Of sums with noise that protects rows, all together.

    Args:
        epsilon: what they may reveal about one row.
        delta: at which that is stated.
    """
    return (
        f"{_UPDATES}, and noise bounds what these reveal about each row of a site, epsilon {epsilon:.4g} at delta "
        f"{delta:g}; it does not hide what many rows of a site have in common"
    )


def promise_of(privacy: PrivacyTerms | None) -> str:
    """Of a secure run.

    Args:
        privacy: its terms of differential privacy; None without it.
    """
    if privacy is None:
        return MASKS_ONLY
    return masks_and_noise(math.inf if privacy.epsilon_budget is None else privacy.epsilon_budget, privacy.delta)
