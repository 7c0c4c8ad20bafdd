"""The differential privacy that a run promises, and the budget that it has spent of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedcore.codec.privacy.accounting import Accountant, Release, coarsest_release
from fedcore.codec.privacy.noise import Mechanism
from fedcore.errors import BudgetSpent, ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlan:
    """The differential privacy that a run promises, for each client, over all of its exchanges.

    noise_multiplier
        Standard deviation of the noise in the smallest sum, over the sensitivity.
    clip_norm
        L2 bound on a client's update.
    metric_bound
        Bound on each metric of an evaluation; 0 if clients are asked for none.
    epsilon
        The budget; infinite if there is none. A run stops anyway if no finite epsilon can be stated.
    delta
        At which epsilon is stated.
    """

    mechanism: Mechanism
    noise_multiplier: float
    clip_norm: float
    metric_bound: float
    epsilon: float
    delta: float

    def check_one_exchange(self) -> None:
        """Raise ConfigurationError if one exchange exceeds the budget, or costs more than can be stated."""
        cost = Accountant((coarsest_release(self.mechanism, self.noise_multiplier),)).epsilon(self.delta)
        if math.isinf(cost):
            raise ConfigurationError(
                f"dp-noise-multiplier {self.noise_multiplier:g} protects nobody: one exchange costs more epsilon than "
                "can be stated; raise it",
                check="noise-protects-nobody",
            )
        if cost > self.epsilon:
            raise ConfigurationError(
                f"one exchange with dp-noise-multiplier {self.noise_multiplier:g} costs epsilon {cost:.3g} at delta "
                f"{self.delta:g}, more than dp-epsilon {self.epsilon:g}; raise either, or set dp-rounds instead",
                check="noise-costs-more",
            )


@dataclass(slots=True)
class PrivacyBudget:
    """What one run has spent of its plan; without a plan it admits everything and counts nothing."""

    plan: PrivacyPlan | None
    _spent: Accountant = field(default_factory=Accountant, init=False)

    def withholds(self, trains: bool) -> bool:
        """Whether clients are not asked at all: for metrics alone, if nothing bounds them."""
        return self.plan is not None and not self.plan.metric_bound and not trains

    def admit(self, release: Release | None) -> None:
        """Raise BudgetSpent if one more exchange would exceed the budget, or all that can be stated.

        Called before its clients are asked.
        """
        if self.plan is None or release is None:
            return
        after = self._spent.epsilon(self.plan.delta, further=release)
        if after > self.plan.epsilon or math.isinf(after):
            budget = f"the budget is {self.plan.epsilon:g}" if math.isfinite(self.plan.epsilon) else "none is set"
            raise BudgetSpent(
                f"{BudgetSpent.check}: epsilon {self.epsilon_spent:.4g} is spent, one more exchange would make it "
                f"{after:.4g}; {budget} at delta {self.plan.delta:g}"
            )

    def spend(self, release: Release | None) -> None:
        """Count an exchange once shares are asked for: whatever fails after that, its sum may be known."""
        if self.plan is not None and release is not None:
            self._spent.add(release)

    @property
    def epsilon_spent(self) -> float | None:
        """What has been spent, at the plan's delta; None without a plan."""
        return self._spent.epsilon(self.plan.delta) if self.plan is not None else None
