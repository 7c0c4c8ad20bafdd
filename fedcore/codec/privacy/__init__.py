"""Distributed differential privacy: each client adds a share of the noise, and a run keeps account of what it reveals.

A sum over a cohort can still tell something about one client. Under (epsilon, delta)-differential privacy (Dwork and
Roth 2014, chapter 2) hardly anything changes whether a client takes part or not: any outcome is at most e^epsilon times
as likely, but for a chance of delta. No single party is trusted to add the noise. Every client adds a small share, and
the shares of the fewest honest clients that a sum may be made of add up to what was promised; only the masked sum ever
leaves secure aggregation. Updates are integers there, so the noise is, too: Skellam (Agarwal, Kairouz, Liu 2021) or
discrete Gaussian (Kairouz, Liu, Steinke 2021).

`noise` draws it, without floating point, from exact tables and a key stream that the server cannot predict.
`accounting` compares one release to a Gaussian mechanism, adds up releases and converts to epsilon.
`plan` is what one run promises and has spent: it stops before the exchange that would exceed its epsilon. An exchange
counts once shares are asked for, whatever fails afterwards. How updates become noised words is in `parameters` and
`noised`; the argument as a whole is in docs/adr/0007-distributed-differential-privacy.md.
"""

from fedcore.codec.privacy.accounting import (
    Accountant,
    Release,
    calibrated_multiplier,
    grid_scale,
    rounded_norm_squared,
    share_variance,
)
from fedcore.codec.privacy.noise import (
    BLOCK,
    ROUNDING,
    KeyStream,
    Mechanism,
    NoiseSampler,
    NoiseTable,
    noise_bound,
    noise_table,
)
from fedcore.codec.privacy.plan import PrivacyBudget, PrivacyPlan

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
