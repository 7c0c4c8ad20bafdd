"""What the run config says of a run of boosted trees, next to how trees grow: rounds, tests, bins and sites."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from flwr.app import UserConfig

from fedcore.errors import ConfigurationError

ROUNDS: Final = "num-server-rounds"
MOST_BINS: Final = 256
_BUDGET: Final = {"epsilon": 0.0, "delta": 1e-6, "noise-multiplier": 0.0}
NOISE_KEYS: Final = ("epsilon", "noise-multiplier")
"""Of the run config; either turns noise on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostingSchedule:
    """The numbers of a run.

    rounds: of trees, those of an earlier model among them.
    min_nodes: how many sites have to be there when the run begins.
    test_every: rounds between two tests; 0 for none.
    early_stopping: rounds without a lower loss after which the run stops; 0 for never.
    bins: most of a feature.
    epsilon: how much the run may reveal of one row; 0 for no limit.
    delta: at which that is counted.
    multiplier: noise of a level over what one row changes in it; 0 to derive it from `epsilon`.
    """

    rounds: int
    min_nodes: int
    test_every: int
    early_stopping: int
    bins: int
    epsilon: float = 0.0
    delta: float = 1e-6
    multiplier: float = 0.0

    @property
    def noised(self) -> bool:
        """Whether sums get noise."""
        return bool(self.epsilon or self.multiplier)

    @classmethod
    def of(cls, config: UserConfig) -> Self:
        """Raises ConfigurationError for a number that makes no sense."""
        bins, every = _number(config, "bins", 32, 2), _number(config, "test-every", 1, 0)
        early = _number(config, "early-stopping-rounds", 0, 0)
        if bins > MOST_BINS:
            raise ConfigurationError(f"bins is {bins}; use 2 to {MOST_BINS}", check="bins")
        if early and not 1 <= every <= early:
            raise ConfigurationError(
                f"early-stopping-rounds is {early}, and test-every is {every}: without a test in these rounds nothing "
                "says that the loss is not lower; set test-every to 1",
                check="early-stopping-rounds",
            )
        budget = {key: _real(config, key, default) for key, default in _BUDGET.items()}
        noised = bool(budget["epsilon"] or budget["noise-multiplier"])
        if not 0 < budget["delta"] < 1:
            raise ConfigurationError(
                f"delta is {budget['delta']:g}; use a number between 0 and 1, below 1 / rows", check="delta"
            )
        if noised and early:
            raise ConfigurationError(
                "early-stopping-rounds needs the loss on the sites' test rows, and tests have no noise (epsilon, "
                "noise-multiplier); set it to 0",
                check="early-stopping-rounds",
            )
        return cls(
            rounds=_number(config, ROUNDS, 1, 1),
            min_nodes=_number(config, "min-nodes", 1, 1),
            test_every=0 if noised else every,
            early_stopping=early,
            bins=bins,
            epsilon=budget["epsilon"],
            delta=budget["delta"],
            multiplier=budget["noise-multiplier"],
        )


def _number(config: UserConfig, key: str, default: int, least: int) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{key} is {value!r}; use a whole number from {least} on", check=key)
    return value


def _real(config: UserConfig, key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigurationError(f"{key} is {value!r}; use a number from 0 on", check=key)
    return float(value)
