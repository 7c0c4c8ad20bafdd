"""The privacy plan of a run, from its settings: the noise is calibrated, the budget has to pay for an exchange."""

from __future__ import annotations

import math

from fedcore.codec.privacy import PrivacyPlan, calibrated_multiplier
from fedcore.run.settings import JobSettings


def privacy_plan(settings: JobSettings) -> PrivacyPlan | None:
    """The plan of a job, its noise multiplier calibrated if only a budget is set; None without privacy.

    Raises ConfigurationError if the budget does not even pay for one exchange.
    """
    if not settings.private:
        return None
    epsilon = settings.dp_epsilon or math.inf
    multiplier = settings.dp_noise_multiplier or calibrated_multiplier(
        settings.dp_mechanism, epsilon=epsilon, delta=settings.dp_delta, exchanges=_exchanges(settings)
    )
    plan = PrivacyPlan(
        mechanism=settings.dp_mechanism,
        noise_multiplier=multiplier,
        clip_norm=settings.clip_norm,
        metric_bound=settings.dp_metric_bound,
        epsilon=epsilon,
        delta=settings.dp_delta,
    )
    plan.check_one_exchange()
    return plan


def _exchanges(settings: JobSettings) -> int:
    """Noised sums that a run of `dp_rounds` rounds makes: with a bound for metrics, each evaluation is one."""
    return settings.dp_rounds * (2 if settings.dp_metric_bound else 1)
