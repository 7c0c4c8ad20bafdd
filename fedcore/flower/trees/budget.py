"""The noise of a run of boosted trees, and what its sums may reveal of one row.

The unit is one row: neighbours are two tables of one site, one of which has a row more. Every level of every tree is a
Gaussian mechanism over the same rows, and all of them add up (docs/explanation/accounting.md). Nothing is taken off for
draws of rows or features, which a server knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from fedcore.codec.privacy import Accountant, Release
from fedcore.codec.privacy.query_noise import ROW_MECHANISM, QueryNoise
from fedcore.errors import BudgetSpent, ConfigurationError, EncodingError
from fedcore.flower.trees.schedule import BoostingSchedule
from fedcore.trees import BoostingSettings
from fedcore.trees.noise import row_norm, sensitivity

_MOST: Final = 2.0**16
_DIGITS: Final = 1e-4
_TOO_LITTLE: Final = "no reasonable noise keeps the run within its epsilon; raise it, or grow fewer trees"
VALUES: Final = "trees/sums"
OTHERS: Final = ("federation/clients", "federation/rows")
"""The numbers of a reply, as a query's sum names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelPlan:
    """The queries of a level: each asks for some of the features, in all of its nodes.

    features: how many each asks for.
    root: whether each asks for the sums of all rows, too.
    """

    features: Sequence[int]
    root: bool

    @classmethod
    def of(cls, features: int, bins: int, nodes: int, most: int, *, root: bool) -> Self:
        """With as many features in each query as it has room for; raises ConfigurationError if none has.

        Args:
            bins: most of a feature.
            nodes: of all trees of the level together.
            most: numbers of a query.
        """
        room = (most - 2 * nodes * root) // (2 * nodes * bins)
        if room < 1:
            raise ConfigurationError(
                f"{nodes} nodes with {bins} bins have no room in one query, which noise for each row needs; lower "
                "max-depth or bins",
                check="no-room",
            )
        return cls(features=[min(room, features - start) for start in range(0, features, room)], root=root)


@dataclass(slots=True, kw_only=True)
class RowBudget:
    """The noise of all levels of a run, and what is spent.

    settings: of the trees.
    epsilon: at which the run stops; infinite for no limit.
    delta: at which it is counted.
    multiplier: standard deviation of the noise in the smallest sum over what one row changes in a level.
    shares: how many clients' shares make up this noise.
    features: that a tree grows from.
    """

    settings: BoostingSettings
    epsilon: float
    delta: float
    multiplier: float
    shares: int
    features: int
    _spent: Accountant = field(default_factory=Accountant, init=False)

    @classmethod
    def of(
        cls,
        schedule: BoostingSchedule,
        settings: BoostingSettings,
        features: int,
        shares: int,
        levels: Sequence[tuple[LevelPlan, int]],
    ) -> RowBudget:
        """The least noise for which all levels cost at most the epsilon of the schedule, if that sets no multiplier.

        Raises ConfigurationError if no reasonable noise is enough.

        Args:
            features: that a tree grows from.
            levels: of the whole run, and how often each is asked.
        """

        def made(multiplier: float) -> RowBudget:
            return cls(
                settings=settings, epsilon=schedule.epsilon or math.inf, delta=schedule.delta,
                multiplier=multiplier, shares=shares, features=features,
            )  # fmt: skip

        if schedule.multiplier:
            budget = made(schedule.multiplier)
            if (cost := budget.cost(levels[:1])) > budget.epsilon or math.isinf(cost):
                raise ConfigurationError(
                    f"noise-multiplier is {schedule.multiplier:g}: one level of all rounds costs more epsilon than the "
                    "run may spend, or than can be stated; raise it",
                    check="noise-multiplier",
                )
            return budget

        def enough(multiplier: float) -> bool:
            try:
                return made(multiplier).cost(levels) <= schedule.epsilon
            except EncodingError as error:  # noise too large to be drawn
                raise ConfigurationError(_TOO_LITTLE, check="epsilon") from error

        return made(_least(enough))

    @property
    def deviation(self) -> float:
        """Of the noise in the smallest sum, in steps of a gradient."""
        return self.multiplier * math.sqrt(self.features + 1) * row_norm(self.settings)

    @property
    def epsilon_spent(self) -> float:
        """At the delta of the run."""
        return self._spent.epsilon(self.delta)

    def noise(self, cells: Mapping[int, int], numbers: int) -> QueryNoise:
        """Of one query, by `sensitivity` and how many numbers it asks for."""
        release = Release(
            mechanism=ROW_MECHANISM,
            variance=self.deviation**2 / self.shares,
            shares=self.shares,
            scale=sensitivity(self.settings, cells),
            dimension=numbers,
        )
        return QueryNoise(values=VALUES, others=OTHERS, release=release)

    def cost(self, levels: Sequence[tuple[LevelPlan, int]]) -> float:
        """Epsilon of all these levels alone."""
        accountant = Accountant()
        for level, times in levels:
            for release in self._releases(level):
                accountant.add(release, times)
        return accountant.epsilon(self.delta)

    def spend(self, noise: QueryNoise) -> None:
        """Count a query before it is asked, even if it then fails; raises BudgetSpent in its place."""
        self._check(Accountant((noise.release,)))
        self._spent.add(noise.release)

    def _check(self, more: Accountant) -> None:
        after = self._spent.together(more).epsilon(self.delta)
        if after > self.epsilon or math.isinf(after):
            budget = f"the budget is {self.epsilon:g}" if math.isfinite(self.epsilon) else "none is set"
            raise BudgetSpent(
                f"{BudgetSpent.check}: epsilon {self.epsilon_spent:.4g} of each row is spent, one more query "
                f"would make it {after:.4g}; {budget} at delta {self.delta:g}"
            )

    def _releases(self, level: LevelPlan) -> Iterator[Release]:
        for features in level.features:
            yield self.noise({0: features + level.root}, _NUMBERS).release


_NUMBERS: Final = 4096
"""As many as a query has at most: the dearest."""


def _least(enough: Callable[[float], bool]) -> float:
    """The least number, to four digits, for which this holds."""
    low, high = 2.0**-8, 2.0**-8
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST:
            raise ConfigurationError(_TOO_LITTLE, check="epsilon")
    while high - low > _DIGITS * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
