"""A step of a regression: what every client answers at given coefficients, and nothing that its own rows alone decide.

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
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit, gammaln, logsumexp, xlogy

from fedcore.data.regression.design import CompleteRows
from fedcore.data.regression.question import COUNTS, SUMS, Array, Family, RegressionQuery
from fedcore.data.survival.partial import SiteRows
from fedcore.errors import AppError, ConfigurationError
from fedcore.system.plain_json import NO_OTHER_KEYS

LARGEST: Final = 2.0**39
"""What a client's sum is cut off at, so that one step that goes too far ends no run."""
LARGEST_ETA: Final = 300.0
_FRACTION: Final = 2.0**30
_ROWS_AT_ONCE: Final = 1 << 16


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
        rows = CompleteRows.of(self.query, columns)
        count = len(rows.rows)
        nonzero, sums = np.zeros(self.query.size), np.zeros(SUMS + _upper(self.query.size)[0].size + self.query.size)
        at_once = max(count, 1) if self.profile else _ROWS_AT_ONCE
        for start in range(0, count, at_once):
            part = slice(start, start + at_once)
            design = rows.design(part)
            nonzero += np.count_nonzero(design, axis=0)
            if self.profile and self.query.survival is not None:
                sums += self._partial(design, SiteRows.of(self.query.survival, columns, rows.rows[part]))
            else:
                sums += self._sums(design, rows.target[part])
        return numbers_of(rows.counts, nonzero, sums)

    def _sums(self, design: Array, target: Array) -> Array:
        """Log-likelihood, deviance, the target's sum, the gradient [p], the information's upper triangle."""
        query = self.query
        scaled, eta = self.scaled(design)
        target = query.scaled_target(target)
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
                eta = np.clip(eta, -LARGEST_ETA, LARGEST_ETA)
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
        size = self.query.size
        head, sums, cut_off = sums_of(numbers, size, clients, self.length)
        information = symmetric(sums[SUMS + size :], size)
        return Sums(
            **head,
            target=float(sums[2]),
            log_likelihood=float(sums[0]),
            deviance=float(sums[1]),
            gradient=sums[SUMS : SUMS + size],
            information=information,
            cut_off=cut_off,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSums:
    """What the sums of every step say of the rows, by which those of two steps are told apart.

    clients, rows: how many contributed, and their complete rows.
    missing: rows that were left out.
    wrong: rows whose target the family does not have; if there are any, the other sums mean nothing.
    nonzero: of each design column, how many rows are not 0 [p].
    target: the sum of the target, scaled if the regression is linear.
    """

    clients: int
    rows: int
    missing: int
    wrong: int
    nonzero: Array
    target: float

    def same_rows(self, other: RowSums) -> bool:
        """Whether another step is of the same clients and rows, as far as its sums tell."""
        return (
            (self.clients, self.rows, self.missing, self.wrong)
            == (other.clients, other.rows, other.missing, other.wrong)
            and np.array_equal(self.nonzero, other.nonzero)
            and abs(self.target - other.target) <= 1e-6 * max(1.0, abs(other.target))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums(RowSums):
    """The sums over clients at some coefficients.

    gradient, information: of the log-likelihood, in the scaled columns [p], [p, p].
    cut_off: whether a number was larger than a client may answer; likelihood and deviance, which fall, excepted.
    """

    log_likelihood: float
    deviance: float
    gradient: Array
    information: Array
    cut_off: bool


def numbers_of(counts: Array, nonzero: Array, sums: Array) -> list[float]:
    """A client's answer: counts of rows [3], of those that are not 0 [p], and sums, each in two parts."""
    cut = np.clip(np.nan_to_num(sums, nan=LARGEST), -LARGEST, LARGEST)
    parts = np.floor(cut)
    numbers: list[float] = np.concatenate([counts, nonzero, parts, (cut - parts) * _FRACTION]).tolist()
    return numbers


def sums_of(numbers: Sequence[float], size: int, clients: int, length: int) -> tuple[dict[str, Any], Array, bool]:
    """The inverse, of a sum over clients: what `RowSums` has but for the target, sums, and whether one was cut off.

    The first two, which fall, may be cut off. Raises AppError for another length than is expected.
    """
    values = np.asarray(numbers, np.float64)
    if values.shape != (length,):
        raise AppError(f"the answer has {values.size} numbers, and {length} were expected")
    rows, missing, wrong = values[:COUNTS].round().astype(int).tolist()
    nonzero, rest = values[COUNTS : COUNTS + size], values[COUNTS + size :]
    parts, fractions = np.split(rest, 2)
    head = {"clients": clients, "rows": rows, "missing": missing, "wrong": wrong, "nonzero": nonzero.round()}
    return head, parts + fractions / _FRACTION, bool(np.abs(parts[2:]).max() >= LARGEST)


def symmetric(upper: Array, size: int) -> Array:
    """The matrix [size, size] with this upper triangle."""
    matrix = np.zeros((size, size))
    matrix[_upper(size)] = upper
    return np.asarray(matrix + np.triu(matrix, 1).T)


def _upper(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(size)


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
        return math.log(total) - float(logsumexp(np.clip(eta, -LARGEST_ETA, LARGEST_ETA)))
    middle = math.log(total / (len(target) - total))
    low, high = middle - float(eta.max()) - 1, middle - float(eta.min()) + 1
    return float(brentq(lambda intercept: float(expit(eta + intercept).sum()) - total, low, high, xtol=1e-13))
