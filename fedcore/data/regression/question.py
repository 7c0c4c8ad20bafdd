"""What a regression is: a target, design columns made of an app's columns, and how sites differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fedcore.data.regression.formula import FUNCTIONS
from fedcore.data.survival.times import SurvivalTimes
from fedcore.errors import ConfigurationError
from fedcore.system.plain_json import NO_OTHER_KEYS

Family: TypeAlias = Literal["linear", "logistic", "poisson", "cox"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
SiteEffects: TypeAlias = Literal["", "fixed", "random"]
"""An intercept of each site: none, one that the site tells nobody, or one that is drawn from a normal distribution."""
SITE_EFFECTS: Final[tuple[SiteEffects, ...]] = get_args(SiteEffects)
Array: TypeAlias = NDArray[np.float64]

MOST_VALUES: Final = 4096
"""Numbers in the answer to a query."""
COUNTS: Final = 3
"""Of rows: complete ones, those that are left out, and those whose target is not one of the family."""
SUMS: Final = 3
"""Of the log-likelihood, the deviance and the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A column of the app, or what is made of each of its values.

    function: one of `FUNCTIONS`, or "" for none.
    power: from 1 on.
    level: 1 if the value is this one, else 0; None for the value itself.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    column: str
    function: str = ""
    power: int = 1
    level: float | None = None

    def __post_init__(self) -> None:
        if self.function and self.function not in FUNCTIONS:
            raise ConfigurationError(f"{self.function!r} is no function of a formula")

    def of(self, values: Array) -> Array:
        """Float64 [n]; nan if there is no such number, such as the logarithm of 0."""
        if self.level is not None:
            return np.where(np.isnan(values), np.nan, values == self.level)
        with np.errstate(all="ignore"):
            result: Array = getattr(np, self.function)(values) if self.function else values
            result = result**self.power
        return np.where(np.isfinite(result), result, np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignColumn:
    """A column of the design: a product.

    name: in the output.
    low, high: between what it lies, roughly; they scale it, and no value is cut off.
    category: the column whose levels it stands for, with others; "" for none.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    name: str
    factors: tuple[Factor, ...]
    low: float = -1.0
    high: float = 1.0
    category: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigurationError(f"the bounds of {self.name} are {self.low:g} and {self.high:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionQuery:
    """A regression; raises ConfigurationError for one that cannot be.

    target, unit: a column of the app, and what its numbers are multiplied by.
    target_name: in the output.
    target_low, target_high: its bounds, by which a linear regression scales it.
    intercept: whether a constant comes before the columns.
    one_of: groups of columns of 0 and 1 that are the levels of a category; a row without a 1 in them is missing.
    levels: of the categories that are one column of numbers; a row with another number is left out.
    survival: of a Cox regression, times and strata; its target is the event. None for other families.
    sites: whether each site has an intercept of its own, or a baseline hazard.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    family: Family
    target: str
    target_name: str
    columns: tuple[DesignColumn, ...]
    intercept: bool = True
    unit: float = 1.0
    target_low: float = -1.0
    target_high: float = 1.0
    one_of: tuple[tuple[str, ...], ...] = ()
    levels: tuple[tuple[str, tuple[float, ...]], ...] = ()
    survival: SurvivalTimes | None = None
    sites: SiteEffects = ""

    def __post_init__(self) -> None:
        if (self.family == "cox") != (self.survival is not None):
            raise ConfigurationError("a Cox regression has times, and no other has", check="family")
        if self.sites == "random" and self.survival is not None:
            raise ConfigurationError(
                "a Cox regression has no random effects of sites (frailty) here; --site-effects fixed gives each site "
                "a baseline hazard of its own",
                check="frailty",
            )
        if self.hides_intercept and not (self.intercept and self.columns):
            raise ConfigurationError(
                "a Cox regression, and one with an intercept of each site, has one term at least, and no - 1",
                check="no-terms",
            )
        if not self.size:
            raise ConfigurationError("a regression without an intercept has at least one term")
        if _longest(self.size, self.family, self.sites) > MOST_VALUES:
            room = max(size for size in range(self.size) if _longest(size, self.family, self.sites) <= MOST_VALUES)
            raise ConfigurationError(
                f"the formula makes {self.size} coefficients, and a query has room for {room}; leave out terms, or "
                "levels of categories",
                check="too-many-terms",
            )
        names = self.names
        if len(set(names)) < len(names):
            raise ConfigurationError("two terms of the formula have the same name")
        if not self.target_low < self.target_high or not self.unit > 0:
            raise ConfigurationError("the bounds of the target have to be two numbers, the first the lower one")

    @property
    def names(self) -> tuple[str, ...]:
        """Of the coefficients."""
        return (*(("Intercept",) if self.intercept else ()), *(column.name for column in self.columns))

    @property
    def size(self) -> int:
        """p, how many coefficients there are."""
        return len(self.columns) + self.intercept

    @property
    def hides_intercept(self) -> bool:
        """Whether the intercept is no coefficient of the output: a baseline hazard, or one of each site."""
        return self.sites == "fixed" or self.survival is not None

    @property
    def times(self) -> SurvivalTimes:
        """Of a Cox regression; raises ConfigurationError for another."""
        if self.survival is None:
            raise ConfigurationError("the regression has no times", check="family")
        return self.survival

    @property
    def target_center(self) -> float:
        """What a linear regression subtracts from its target; nothing if no intercept would take it up."""
        return (self.target_low + self.target_high) / 2 if self.intercept else 0.0

    @property
    def target_scale(self) -> float:
        """What a linear regression divides the rest by."""
        return max(self.target_high - self.target_center, self.target_center - self.target_low)

    def scaled_target(self, target: Array) -> Array:
        """As it is, and about within [-1, 1] if the regression is linear, float64 [n]."""
        return (target - self.target_center) / self.target_scale if self.family == "linear" else target

    @property
    def length(self) -> int:
        """How many numbers a client answers to a step."""
        return _step_length(self.size)

    @property
    def app_columns(self) -> tuple[str, ...]:
        """The columns of the app that are read, the target first."""
        of_factors = [factor.column for column in self.columns for factor in column.factors]
        of_groups = [name for group in self.one_of for name in group]
        return tuple(dict.fromkeys([self.target, *of_factors, *of_groups, *(name for name, _ in self.levels)]))


def _step_length(size: int) -> int:
    return COUNTS + size + 2 * (SUMS + size + size * (size + 1) // 2)


def mixed_sums(size: int, family: Family) -> int:
    """How many sums, each in two parts, answer a step of random effects (`fedcore.data.regression.mixed`)."""
    matrix = (size + 1) * (size + 2) // 2
    return SUMS + 1 + (3 + 3 * matrix if family == "linear" else size + 1 + matrix)


def _longest(size: int, family: Family, sites: SiteEffects) -> int:
    more = COUNTS + size + 2 * mixed_sums(size, family) if sites == "random" else 0
    return max(_step_length(size), more)
