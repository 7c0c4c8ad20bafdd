"""What the run config says of a run of boosted trees, next to how trees grow: rounds, tests, bins and sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from flwr.app import UserConfig

from fedcore.errors import ConfigurationError

ROUNDS: Final = "num-server-rounds"
MOST_BINS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostingSchedule:
    """The numbers of a run.

    rounds: of trees, those of an earlier model among them.
    min_nodes: how many sites have to be there when the run begins.
    test_every: rounds between two tests; 0 for none.
    early_stopping: rounds without a lower loss after which the run stops; 0 for never.
    bins: most of a feature.
    """

    rounds: int
    min_nodes: int
    test_every: int
    early_stopping: int
    bins: int

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
        return cls(
            rounds=_number(config, ROUNDS, 1, 1),
            min_nodes=_number(config, "min-nodes", 1, 1),
            test_every=every,
            early_stopping=early,
            bins=bins,
        )


def _number(config: UserConfig, key: str, default: int, least: int) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{key} is {value!r}; use a whole number from {least} on", check=key)
    return value
