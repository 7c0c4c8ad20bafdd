"""What a regression asks of every client: sums at given coefficients, and nothing that depends on a site's own rows.

A client makes the design columns [n, p], scales them by numbers that all clients share, and answers sums over its
complete rows: the log-likelihood, its gradient [p] and its information matrix (p (p + 1) / 2 numbers), the deviance,
and the number of rows. With an intercept of each site, the likelihood is the one at the intercept that is best for the
site's rows, so that only what the other coefficients say of them leaves it, in a sum. Each sum comes in two parts,
whole and fractional, so that a sum of fixed-point numbers loses nothing of it (McCullagh and Nelder, Generalized Linear
Models, 1989, section 2.5: the information of canonical links).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit, gammaln, logsumexp, xlogy

from fedcore.data.regression.formula import FUNCTIONS
from fedcore.data.survival.partial import SiteRows
from fedcore.data.survival.times import SurvivalTimes
from fedcore.errors import AppError, ConfigurationError
from fedcore.system.plain_json import NO_OTHER_KEYS

Family: TypeAlias = Literal["linear", "logistic", "poisson", "cox"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
Array: TypeAlias = NDArray[np.float64]

MOST_VALUES: Final = 4096
"""Numbers in the answer to a query."""
LARGEST: Final = 2.0**39
"""What a client's sum is cut off at, so that one step that goes too far ends no run."""
_FRACTION: Final = 2.0**30
_COUNTS: Final = 3
_SUMS: Final = 3
_ROWS_AT_ONCE: Final = 1 << 16
_LARGEST_ETA: Final = 300.0


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
    sites: whether each site has an intercept of its own, which it tells nobody, or a baseline hazard.
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
    sites: bool = False

    def __post_init__(self) -> None:
        if (self.family == "cox") != (self.survival is not None):
            raise ConfigurationError("a Cox regression has times, and no other has", check="family")
        if self.hides_intercept and not (self.intercept and self.columns):
            raise ConfigurationError(
                "a Cox regression, and one with an intercept of each site, has one term at least, and no - 1",
                check="no-terms",
            )
        if not self.size:
            raise ConfigurationError("a regression without an intercept has at least one term")
        if self.length > MOST_VALUES:
            raise ConfigurationError(
                f"the formula makes {self.size} coefficients, and a query has room for {_most_coefficients()}; leave "
                "out terms, or levels of categories",
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
        return self.sites or self.survival is not None

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

    @property
    def length(self) -> int:
        """How many numbers a client answers."""
        return answer_length(self.size)

    @property
    def app_columns(self) -> tuple[str, ...]:
        """The columns of the app that are read, the target first."""
        of_factors = [factor.column for column in self.columns for factor in column.factors]
        of_groups = [name for group in self.one_of for name in group]
        return tuple(dict.fromkeys([self.target, *of_factors, *of_groups, *(name for name, _ in self.levels)]))


def answer_length(size: int) -> int:
    """How many numbers answer a question about `size` coefficients."""
    return _COUNTS + size + 2 * (_SUMS + size + size * (size + 1) // 2)


def _most_coefficients() -> int:
    size = 1
    while answer_length(size + 1) <= MOST_VALUES:
        size += 1
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionStep:
    """One question: the sums at these coefficients.

    center, scale: what is subtracted from each design column, and what the rest is divided by [p].
    coefficients: of the scaled columns [p].
    profile: whether the sums are those of the likelihood at each site's own best intercept, or of each site's own risk
        sets; else a Cox regression's are moments.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    query: RegressionQuery
    center: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]
    profile: bool = False

    def __post_init__(self) -> None:
        numbers = (*self.center, *self.scale, *self.coefficients)
        sizes = {len(self.center), len(self.scale), len(self.coefficients)}
        if sizes != {self.query.size} or not all(map(math.isfinite, numbers)) or not all(self.scale):
            raise ConfigurationError(f"a step of this regression has {self.query.size} finite numbers of each kind")

    @property
    def length(self) -> int:
        """How many numbers a client answers."""
        return self.query.length

    def answer(self, columns: Mapping[str, ArrayLike]) -> list[float]:
        """One client's numbers [length]; raises AppError for a column that is missing or holds no numbers."""
        values = _values(self.query, columns)
        complete = _complete(self.query, values, columns)
        rows = np.flatnonzero(complete)
        target = values[self.query.target][rows] * self.query.unit
        wrong = int(np.count_nonzero(~_possible(self.query.family, target)))
        counts = np.array([len(rows), len(complete) - len(rows), wrong], np.float64)
        nonzero, sums = np.zeros(self.query.size), np.zeros(_SUMS + _upper(self.query.size)[0].size + self.query.size)
        at_once = max(len(rows), 1) if self.profile else _ROWS_AT_ONCE
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            design = design_of(self.query, {name: column[some] for name, column in values.items()})
            nonzero += np.count_nonzero(design, axis=0)
            if self.profile and self.query.survival is not None:
                sums += self._partial(design, SiteRows.of(self.query.survival, columns, some))
            else:
                sums += self._sums(design, target[start : start + at_once])
        cut = np.clip(np.nan_to_num(sums, nan=LARGEST), -LARGEST, LARGEST)
        parts = np.floor(cut)
        numbers: list[float] = np.concatenate([counts, nonzero, parts, (cut - parts) * _FRACTION]).tolist()
        return numbers

    def _sums(self, design: Array, target: Array) -> Array:
        """Log-likelihood, deviance, the target's sum, the gradient [p], the information's upper triangle."""
        query = self.query
        scaled, eta = self.scaled(design)
        if query.family == "linear":
            target = (target - query.target_center) / query.target_scale
        if self.profile:
            intercept = site_intercept(query.family, target, eta)
            if intercept is None:
                return self._of_site(np.zeros(3), np.zeros(query.size), np.zeros((query.size, query.size)), target)
            eta = eta + intercept
        match query.family:
            case "linear":
                mean, weight = eta, np.ones_like(eta)
                deviance = (target - eta) ** 2
                likelihood = -deviance / 2
            case "logistic":
                mean = expit(eta)
                weight = mean * (1 - mean)
                likelihood = target * eta - np.logaddexp(0.0, eta)
                deviance = -2 * likelihood
            case "poisson":
                eta = np.clip(eta, -_LARGEST_ETA, _LARGEST_ETA)
                mean = weight = np.exp(eta)
                likelihood = target * eta - mean - gammaln(target + 1)
                deviance = 2 * (xlogy(target, target) - target * eta - target + mean)
            case "cox":  # moments, and sums over the rows with an event
                mean, weight = np.zeros_like(eta), np.ones_like(eta)
                likelihood = deviance = np.zeros_like(eta)
        gradient = scaled.T @ (target - mean)
        information = (scaled * weight[:, None]).T @ scaled
        three = np.array([likelihood.sum(), deviance.sum(), target.sum()])
        if self.profile:
            of_all = information[0]  # of the intercept, whose column is 1
            return self._of_site(three, gradient, information - np.outer(of_all, of_all) / of_all[0], target)
        return np.concatenate([three, gradient, information[_upper(query.size)]])

    def scaled(self, design: Array) -> tuple[Array, Array]:
        """The design in the step's scale [n, p], and the predictions [n]."""
        scaled = (design - np.asarray(self.center)) / np.asarray(self.scale)
        return scaled, scaled @ np.asarray(self.coefficients)

    def _of_site(self, three: Array, gradient: Array, information: Array, target: Array) -> Array:
        """Sums in which the intercept stands still, as no coefficient of the output does."""
        three[2] = target.sum()
        gradient[0], information[0], information[:, 0] = 0.0, 0.0, 0.0
        information[0, 0] = 1.0
        return np.concatenate([three, gradient, information[_upper(self.query.size)]])

    def _partial(self, design: Array, rows: SiteRows) -> Array:
        """The partial likelihood of a site's own risk sets."""
        scaled, eta = self.scaled(design)
        likelihood, gradient, information = rows.partial_likelihood(scaled, eta)
        return self._of_site(np.array([likelihood, -2 * likelihood, 0.0]), gradient, information, rows.died)

    def sums(self, numbers: Sequence[float], clients: int) -> Sums:
        """What the sums over all clients say."""
        size, values = self.query.size, np.asarray(numbers, np.float64)
        if values.shape != (self.query.length,):
            raise AppError(f"the answer has {values.size} numbers, and {self.query.length} were expected")
        counts, nonzero, rest = values[:_COUNTS], values[_COUNTS : _COUNTS + size], values[_COUNTS + size :]
        parts, fractions = np.split(rest, 2)
        sums = parts + fractions / _FRACTION
        information = np.zeros((size, size))
        information[_upper(size)] = sums[_SUMS + size :]
        information += np.triu(information, 1).T
        return Sums(
            clients=clients,
            rows=round(counts[0]),
            missing=round(counts[1]),
            wrong=round(counts[2]),
            nonzero=nonzero.round(),
            log_likelihood=float(sums[0]),
            deviance=float(sums[1]),
            target=float(sums[2]),
            gradient=sums[_SUMS : _SUMS + size],
            information=information,
            cut_off=bool(np.abs(parts[2:]).max() >= LARGEST),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The sums over clients.

    clients, rows: how many contributed, and their complete rows.
    missing: rows that were left out.
    wrong: rows whose target the family does not have; if there are any, the other sums mean nothing.
    nonzero: of each design column, how many rows are not 0 [p].
    target: the sum of the target, scaled if the regression is linear.
    gradient, information: of the log-likelihood, in the scaled columns [p], [p, p].
    cut_off: whether a number was larger than a client may answer; likelihood and deviance, which fall, excepted.
    """

    clients: int
    rows: int
    missing: int
    wrong: int
    nonzero: Array
    log_likelihood: float
    deviance: float
    target: float
    gradient: Array
    information: Array
    cut_off: bool


def _upper(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(size)


def complete_rows(query: RegressionQuery, columns: Mapping[str, ArrayLike]) -> NDArray[np.bool_]:
    """Of each row, whether nothing that the regression uses is missing in it [n]; raises AppError as answers do."""
    return _complete(query, _values(query, columns), columns)


def complete_design(query: RegressionQuery, columns: Mapping[str, ArrayLike], chosen: NDArray[np.bool_]) -> Array:
    """The design of some rows, not scaled, float64 [m, p]; raises AppError as answers do."""
    return design_of(query, {name: column[chosen] for name, column in _values(query, columns).items()})


def site_intercept(family: Family, target: Array, eta: Array) -> float | None:
    """The intercept at which the likelihood of a site's rows is largest; None if it is infinite, or no row is there.

    target, eta: float64 [n], the predictions without it.
    """
    total = float(target.sum())
    if family == "linear":
        return float((target - eta).mean()) if len(target) else None
    if not 0 < total < (len(target) if family == "logistic" else math.inf):
        return None
    if family == "poisson":
        return math.log(total) - float(logsumexp(np.clip(eta, -_LARGEST_ETA, _LARGEST_ETA)))
    middle = math.log(total / (len(target) - total))
    low, high = middle - float(eta.max()) - 1, middle - float(eta.min()) + 1
    return float(brentq(lambda intercept: float(expit(eta + intercept).sum()) - total, low, high, xtol=1e-13))


def _values(query: RegressionQuery, columns: Mapping[str, ArrayLike]) -> dict[str, Array]:
    values = {}
    for name in query.app_columns:
        if name not in columns:
            raise AppError(
                f"there is no column {name!r}; there are {', '.join(sorted(columns)) or 'none'}", check="no-such-column"
            )
        try:
            values[name] = np.asarray(columns[name], np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise AppError(
                f"column {name!r} holds values that are no numbers; give each of its categories a number",
                check="not-numbers",
            ) from None
    if len({len(column) for column in values.values()}) > 1:
        raise AppError("the columns of the regression have different numbers of rows", check="uneven-columns")
    return values


def _complete(
    query: RegressionQuery, values: Mapping[str, Array], columns: Mapping[str, ArrayLike]
) -> NDArray[np.bool_]:
    """Of each row, whether nothing that the regression uses is missing in it [n]."""
    complete = np.isfinite(values[query.target])
    if query.survival is not None:
        complete &= query.survival.rows(columns).used
    for factor in {factor for column in query.columns for factor in column.factors}:
        complete &= np.isfinite(factor.of(values[factor.column]))
    for group in query.one_of:
        complete &= np.any([values[name] == 1 for name in group], axis=0)
    for name, levels in query.levels:
        complete &= np.isin(values[name], levels)
    return complete


def _possible(family: Family, target: Array) -> NDArray[np.bool_]:
    if family in ("logistic", "cox"):
        return np.isin(target, (0.0, 1.0))
    return np.greater_equal(target, 0.0 if family == "poisson" else -np.inf)


def design_of(query: RegressionQuery, values: Mapping[str, Array]) -> Array:
    """The design columns, float64 [n, p], not scaled."""
    rows = len(values[query.target])
    columns = [np.ones(rows)] if query.intercept else []
    for column in query.columns:
        product = np.ones(rows)
        for factor in column.factors:
            product = product * factor.of(values[factor.column])
        columns.append(product)
    return np.stack(columns, axis=1)
