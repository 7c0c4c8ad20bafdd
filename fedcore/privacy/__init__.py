"""Distributed differential privacy: noise shares at the clients, and the account of what their sums reveal.

`tables` and `sampler` make the noise, `release` bounds what one sum reveals, `accounting` composes and converts to
epsilon, `budget` is what a run keeps. How updates become noised words is in `fedcore.codec.private`. The argument is in
docs/adr/0007-distributed-differential-privacy.md.
"""

from fedcore.privacy.accounting import (
    Accountant,
    Release,
    calibrated_multiplier,
    grid_scale,
    rounded_norm_squared,
    share_variance,
)
from fedcore.privacy.budget import PrivacyBudget, PrivacyPlan
from fedcore.privacy.noise import (
    BLOCK,
    ROUNDING,
    KeyStream,
    Mechanism,
    NoiseSampler,
    NoiseTable,
    noise_bound,
    noise_table,
)

__all__ = [
    "BLOCK",
    "ROUNDING",
    "Accountant",
    "KeyStream",
    "Mechanism",
    "NoiseSampler",
    "NoiseTable",
    "PrivacyBudget",
    "PrivacyPlan",
    "Release",
    "calibrated_multiplier",
    "grid_scale",
    "noise_bound",
    "noise_table",
    "rounded_norm_squared",
    "share_variance",
]
