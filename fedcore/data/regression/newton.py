"""A regression from its sums: Newton steps until the coefficients stand still, and what cannot be estimated by name.

The canonical links have a concave likelihood, so that Newton's method is Fisher scoring, and with halved steps it
reaches the only maximum from anywhere. All sums have to be of the same rows: a site that joins or leaves in between
ends the regression, since its coefficients would be of nobody's rows, and two answers that differ by one site tell of
that site alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedcore.data.regression.checks import (
    check_categories,
    check_range,
    check_residuals,
    check_rows,
    constant_column,
    separation,
)
from fedcore.data.regression.question import Array, Family, RegressionQuery
from fedcore.data.regression.step import RegressionStep, RowSums, Sums
from fedcore.data.statistics import LEAST_IN_CELL
from fedcore.errors import ConfigurationError, RoundFailed

Ask = Callable[[RegressionStep], Sums]

MOST_QUERIES: Final = 40
_STILL: Final = 1e-9
"""The largest step, in deviations of a column, at which the coefficients stand still."""
_NEARLY_STILL: Final = 1e-6
"""The same if steps do not become smaller any more, since the sums are not finer."""
_FLAT: Final = 1e-4
"""The fall of the deviance below which a step gains nothing."""
_FAR: Final = 0.1
"""How far a step that gains nothing moves a prediction, at least, if there is no finite estimate."""
_SINGULAR: Final = 1e-8
"""The least eigenvalue of the columns' correlations that is told from 0."""
_CONSTANT: Final = 1e-6
"""The least deviation of a column, as a share of half of the width of its bounds."""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A generalised linear model over a federation.

    terms, coefficients, errors: name, estimate and standard error of each [p].
    rows, missing: complete rows of all clients, and those that were left out, 1 to 4 of them as 5.
    clients, nodes: how many contributed, and how many there were.
    dispersion: of the residuals, with rows - p degrees of freedom; 1 unless linear.
    queries: sums that it took.
    sites: how many have an intercept of their own, or a baseline hazard, which are no terms; 0 for one of all.
    site_variance: of random intercepts of the sites; None if they are not random.
    events: of a Cox regression, how many there are.
    times: of a Cox regression without effects of sites, at how many times these are.
    """

    family: Family
    target: str
    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    errors: tuple[float, ...]
    rows: int
    missing: int
    clients: int
    nodes: int
    log_likelihood: float
    deviance: float
    dispersion: float
    queries: int
    sites: int = 0
    site_variance: float | None = None
    events: int = 0
    times: int = 0

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the residuals."""
        return self.rows - len(self.terms) - (self.sites if self.site_variance is None else 0)

    @property
    def letter(self) -> str:
        """Of the statistics: t, or z of a normal distribution."""
        return "t" if self.family == "linear" and self.site_variance is None else "z"

    @cached_property
    def statistics(self) -> tuple[float, ...]:
        """Each estimate over its error; nan if the error is 0."""
        pairs = zip(self.coefficients, self.errors, strict=True)
        return tuple(estimate / error if error > 0 else math.nan for estimate, error in pairs)

    @property
    def p_values(self) -> tuple[float, ...]:
        """Two-sided, that a coefficient is 0."""
        return tuple((2 * self._distribution.sf(np.abs(self.statistics))).tolist())

    def intervals(self, confidence: float = 0.95) -> tuple[tuple[float, float], ...]:
        """Wald's, of each coefficient."""
        width = float(self._distribution.ppf((1 + confidence) / 2))
        pairs = zip(self.coefficients, self.errors, strict=True)
        return tuple((estimate - width * error, estimate + width * error) for estimate, error in pairs)

    @property
    def _distribution(self) -> stats.rv_frozen:
        return stats.t(self.degrees) if self.letter == "t" else stats.norm()


def fit(query: RegressionQuery, ask: Ask, *, nodes: int) -> Regression:
    """The regression, by one query after another.

    Raises ConfigurationError for rows from which it cannot be estimated (`check` says why), RoundFailed if the clients
    that contribute change.

    Args:
        query: what is estimated.
        ask: gives the sums at coefficients over the clients.
        nodes: how many clients there are.
    """
    newton = NewtonSteps(query, ask)
    return newton.result(*newton.stand_still(newton.begin()), nodes)


class NewtonSteps:
    """Newton steps on sums over clients, all of the same rows; `ask` as in `fit`."""

    def __init__(self, query: RegressionQuery, ask: Ask) -> None:
        self._query = query
        self._ask = ask
        self.queries = 0
        self._first: RowSums | None = None

    def stand_still(self, step: RegressionStep) -> tuple[RegressionStep, Sums]:
        """The coefficients at which the likelihood is largest, and the sums there; raises what `fit` does."""
        sums = self._sums(step)
        if self._query.sites == "fixed":
            self._check_within(sums)
        deviance, last = math.inf, math.inf
        while True:
            direction = self._direction(sums)
            size = float(np.abs(direction).max() / max(1.0, np.abs(step.coefficients).max()))
            if size < _STILL or last / 2 < size < _NEARLY_STILL:
                return step, sums
            if self._query.family != "linear" and deviance - sums.deviance < _FLAT:
                self._check_finite(step, direction)
            deviance, last = sums.deviance, size
            step, sums = self._better(step, sums, direction)

    def _check_finite(self, step: RegressionStep, direction: Array) -> None:
        """Refuse a step that goes far and gains nothing: the likelihood has no maximum in its direction."""
        query = self._query
        widths = [1.0] * query.intercept + [one.high - one.low for one in query.columns]
        far = np.abs(direction) / np.asarray(step.scale) * np.asarray(widths)
        if far.max() > _FAR:
            raise separation(self._names(far > far.max() / 4))

    def begin(self) -> RegressionStep:
        """A step whose columns have mean 0 and deviation 1, at the best constant, out of a first query for moments."""
        query = self._query
        center, scale = _by_bounds(query)
        step = RegressionStep(query=query, center=center, scale=scale, coefficients=(0.0,) * query.size)
        first = self._sums(step)
        check_rows(query, first)
        check_range(query, first)
        check_categories(query, first, step)
        moments = first.information * (4.0 if query.family == "logistic" else 1.0) / first.rows
        means = moments[0] * query.intercept if query.intercept else np.zeros(query.size)
        if query.intercept:
            means[0] = 0.0
        second = np.diag(moments) - means**2
        deviations = np.sqrt(np.maximum(second, 0.0))
        constant = deviations <= _CONSTANT
        if constant.any():
            raise constant_column(self._names(constant))
        covariance = moments - np.outer(means, means)
        if query.intercept:
            covariance[0, 1:] = covariance[1:, 0] = 0.0
        self._check_singular(covariance / np.outer(deviations, deviations))
        center, scale = _rounded(query, step, means, deviations)
        start = np.zeros(query.size)
        if query.intercept and not query.hides_intercept:
            start[0] = _constant_estimate(query, first)
        return RegressionStep(
            query=query, center=center, scale=scale, coefficients=tuple(start.tolist()), profile=query.hides_intercept
        )

    def _check_within(self, sums: Sums) -> None:
        """Refuse columns that differ between sites alone, whose effect is that of the sites, and too few rows."""
        if sums.rows <= len(self._query.columns) + sums.information[0, 0]:
            raise ConfigurationError(
                f"there are {sums.rows} complete rows for {len(self._query.columns)} coefficients and an intercept of "
                "each site; leave out terms, or the effects of sites",
                check="too-few-rows",
            )
        diagonal = np.diag(sums.information)[1:]
        constant = np.concatenate(([False], diagonal <= 1e-9 * max(float(diagonal.max()), 1e-3)))
        if constant.any():
            raise ConfigurationError(
                f"{', '.join(self._names(constant))} is the same in all rows of each site, so that its effect cannot "
                "be told from those of the sites; leave it out, or the effects of sites",
                check="constant-within-sites",
            )

    def _better(self, step: RegressionStep, sums: Sums, direction: Array) -> tuple[RegressionStep, Sums]:
        """The step along the direction, halved until the deviance does not grow."""
        share = 1.0
        while True:
            moved = np.asarray(step.coefficients) + share * direction
            following = replace(step, coefficients=tuple(moved.tolist()))
            result = self._sums(following)
            slack = 1e-9 * (abs(sums.deviance) + result.clients)
            if not result.cut_off and result.deviance <= sums.deviance + slack:
                return following, result
            share /= 2

    def _sums(self, step: RegressionStep) -> Sums:
        self.count()
        sums = self._ask(step)
        self.check_same(sums)
        return sums

    @property
    def rows(self) -> RowSums:
        """Of the first query; raises ConfigurationError if none was asked."""
        if self._first is None:
            raise ConfigurationError("a regression begins with moments")
        return self._first

    def count(self) -> None:
        """Count a query; raises ConfigurationError for one too many."""
        if self.queries == MOST_QUERIES:
            raise ConfigurationError(
                f"the coefficients do not stand still after {MOST_QUERIES} queries; terms that nearly determine each "
                "other, or the target, are the usual reason: leave some out",
                check="not-still",
            )
        self.queries += 1

    def check_same(self, sums: RowSums) -> None:
        """Raise RoundFailed for sums of other rows than those of the first query."""
        first = self._first = self._first or sums
        if not sums.same_rows(first):
            raise RoundFailed(
                f"query {self.queries} of the regression was answered by {sums.clients} clients and the first by "
                f"{first.clients}, or they have other rows now. Coefficients are of the same rows in all steps, so "
                "there is no result: ask again when all clients are there",
                check="other-clients",
            )

    def _direction(self, sums: Sums) -> Array:
        values, vectors = np.linalg.eigh(sums.information)
        if values[0] <= 1e-13 * max(values[-1], 1e-300):
            if self._query.family == "linear":
                self._check_singular(sums.information / sums.rows, least=np.inf)
            weights = np.abs(vectors[:, 0])
            raise separation(self._names(weights > weights.max() / 4))
        return np.asarray(vectors @ ((vectors.T @ sums.gradient) / values), np.float64)

    def _check_singular(self, correlation: Array, least: float = _SINGULAR) -> None:
        values, vectors = np.linalg.eigh(correlation)
        if values[0] < least:
            weights = np.abs(vectors[:, 0])
            names = self._names(weights > 0.05 * weights.max())
            raise ConfigurationError(
                f"the terms {', '.join(names)} determine each other, so that their coefficients have no single value; "
                "leave one of them out",
                check="collinear",
            )

    def _names(self, chosen: NDArray[np.bool_]) -> list[str]:
        names = [name for name, one in zip(self._query.names, chosen, strict=True) if one]
        return [name for name in names if name != "Intercept"] or names

    def result(self, step: RegressionStep, sums: Sums, nodes: int) -> Regression:
        """The regression; its coefficients, and the sums there. nodes: how many clients there are."""
        query = self._query
        back = unscaled(query, step)
        unit, dispersion, likelihood, deviance = 1.0, 1.0, sums.log_likelihood, sums.deviance
        if query.family == "linear":
            check_residuals(query, sums)
            unit = query.target_scale
            deviance = sums.deviance * unit**2
            constants = round(sums.information[0, 0]) if query.sites else int(query.intercept)
            degrees = sums.rows - len(query.columns) - constants
            dispersion, variance = deviance / max(degrees, 1), deviance / sums.rows
            likelihood = -sums.rows / 2 * (math.log(2 * math.pi * variance) + 1)
        return self.regression(
            sums,
            back @ np.asarray(step.coefficients) * unit,
            back @ np.linalg.inv(sums.information) @ back.T * dispersion,
            nodes,
            log_likelihood=likelihood,
            deviance=deviance,
            dispersion=dispersion,
            sites=round(sums.information[0, 0]) if query.sites else 0,
            events=round(sums.target) if query.family == "cox" else 0,
        )

    def regression(self, rows: RowSums, coefficients: Array, covariance: Array, nodes: int, **more: Any) -> Regression:
        """A regression out of what was estimated, in the columns as they are.

        Args:
            rows: of the regression.
            coefficients, covariance: without what a linear regression subtracts from its target [p], [p, p].
            nodes: how many clients there are.
            more: other fields.
        """
        query = self._query
        if query.family == "linear" and query.intercept:
            coefficients[0] += query.target_center
        named = slice(int(query.hides_intercept), None)
        return Regression(
            family=query.family,
            target=query.target_name,
            terms=query.names[named],
            coefficients=tuple(coefficients[named].tolist()),
            errors=tuple(np.sqrt(np.diag(covariance))[named].tolist()),
            rows=rows.rows,
            missing=LEAST_IN_CELL if 0 < rows.missing < LEAST_IN_CELL else rows.missing,
            clients=rows.clients,
            nodes=nodes,
            queries=self.queries,
            **more,
        )


def _by_bounds(query: RegressionQuery) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Center and scale of each column by its bounds; without an intercept nothing is subtracted."""
    if not query.intercept:
        return (0.0,) * query.size, tuple(max(abs(one.low), abs(one.high)) for one in query.columns)
    return (
        (0.0, *((one.low + one.high) / 2 for one in query.columns)),
        (1.0, *((one.high - one.low) / 2 for one in query.columns)),
    )


def _rounded(
    query: RegressionQuery, step: RegressionStep, means: Array, deviations: Array
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Center and scale near the means and the deviations; every client gets them, and rounded they tell less of all."""
    scale = 2.0 ** np.round(np.log2(deviations * np.asarray(step.scale)))
    if not query.intercept:
        return step.center, tuple(scale.tolist())
    scale[0] = 1.0
    center = np.round((np.asarray(step.center) + np.asarray(step.scale) * means) / scale) * scale
    center[0] = 0.0
    return tuple(center.tolist()), tuple(scale.tolist())


def unscaled(query: RegressionQuery, step: RegressionStep) -> Array:
    """The matrix that makes coefficients of the columns as they are from those of the scaled ones [p, p]."""
    back = np.diag(1 / np.asarray(step.scale))
    if query.intercept:
        back[0, 1:] = -np.asarray(step.center)[1:] / np.asarray(step.scale)[1:]
    return back


def _constant_estimate(query: RegressionQuery, first: Sums) -> float:
    mean = first.target / first.rows
    match query.family:
        case "logistic":
            return math.log(mean / (1 - mean))
        case "poisson":
            return math.log(mean)
    return mean
