"""A regression with random intercepts of sites from its sums: REML if it is linear, else maximum likelihood.

statsmodels' MixedLM has the same linear one, and R's lme4 both. Errors are those of the observed information of
coefficients and variance together. If the likelihood falls as soon as sites differ, the variance is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedcore.data.regression.checks import narrow_bounds, no_residuals
from fedcore.data.regression.mixed import MixedStep, MixedSums
from fedcore.data.regression.newton import NewtonSteps, Regression, unscaled
from fedcore.data.regression.question import Array, RegressionQuery
from fedcore.data.regression.step import RegressionStep
from fedcore.errors import ConfigurationError

Ask = Callable[[RegressionStep | MixedStep], tuple[Sequence[float], int]]
"""Gives the sums over clients, and how many these are."""
_STILL: Final = 1e-9
_NEARLY_STILL: Final = 1e-6
_LONGEST: Final = 3.0
"""The longest step of the logarithm of a ratio."""
_LEAST: Final = 1e-4
"""The share of the variance between sites in that of a site's mean, below which it may be 0."""
_BEGIN: Final = 0.3
"""The deviation between sites to begin with."""


def fit_mixed(query: RegressionQuery, ask: Ask, *, nodes: int) -> Regression:
    """The regression, by one query after another; raises what `fit` does, and ConfigurationError for a single site."""
    steps = NewtonSteps(query, lambda step: step.sums(*ask(step)))
    fitting = _MixedFit(query, steps, ask)
    begin = steps.begin()
    mixed = fitting.linear(begin) if query.family == "linear" else fitting.other(steps.stand_still(begin)[0])
    return fitting.regression(mixed, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maximum:
    """The estimates: scaled coefficients [p] and their covariance [p, p], both variances, and the sums there."""

    step: RegressionStep
    sums: MixedSums
    covariance: Array
    between: float
    within: float
    log_likelihood: float


@dataclass(frozen=True, slots=True)
class _Restricted:
    """The restricted likelihood of a linear regression at a ratio of variances, in scaled columns.

    slope, bend: of -2 log-likelihood by the logarithm of the ratio. within: the variance within sites.
    """

    sums: MixedSums
    coefficients: Array
    covariance: Array
    within: float
    deviance: float
    slope: float
    bend: float

    @classmethod
    def of(cls, query: RegressionQuery, sums: MixedSums, *, none: bool) -> _Restricted:
        """none: whether the ratio is 0, and no parameter."""
        if sums.cut_off:
            raise narrow_bounds([query.target_name])
        logarithm, (matrix, first, second) = sums.linear()
        size = len(matrix) - 1
        xx, xy = matrix[:size, :size], matrix[:size, size]
        inverse = np.linalg.inv(xx)
        coefficients = inverse @ xy
        residual = np.append(-coefficients, 1.0)
        squares = float(residual @ matrix @ residual)
        degrees = sums.rows - size
        if squares <= 1e-14 * matrix[size, size]:
            raise no_residuals(query)
        within = squares / degrees
        turn = (first @ residual)[:size]
        slope_of_squares = float(residual @ first @ residual)
        bend_of_squares = float(residual @ second @ residual)
        change = inverse @ first[:size, :size]
        slope = slope_of_squares / within + logarithm[1] + float(np.trace(change))
        fixed_bend = bend_of_squares / within - slope_of_squares**2 / within**2 / degrees + logarithm[2]
        fixed_bend += float(np.trace(inverse @ second[:size, :size]) - np.trace(change @ change))
        covariance = inverse * within
        if not none:  # the observed information of coefficients and the ratio
            joint = np.block(
                [[xx / within, -turn[:, None] / within], [-turn[None] / within, np.array([[fixed_bend / 2]])]]
            )
            covariance = np.linalg.inv(joint)[:size, :size]
        deviance = degrees * (math.log(2 * math.pi * within) + 1) + logarithm[0] + np.linalg.slogdet(xx)[1]
        bend = fixed_bend - 2 / within * float(turn @ inverse @ turn)
        return cls(sums, coefficients, covariance, within, float(deviance), slope, bend)


class _MixedFit:
    def __init__(self, query: RegressionQuery, steps: NewtonSteps, ask: Ask) -> None:
        self._query = query
        self._steps = steps
        self._ask = ask

    def _sums(self, step: RegressionStep, spread: float) -> MixedSums:
        self._steps.count()
        mixed = MixedStep(step=step, spread=spread)
        sums = mixed.sums(*self._ask(mixed))
        self._steps.check_same(sums)
        if sums.sites < 2:
            raise ConfigurationError(
                "only one site has rows, so that nothing tells how sites differ; leave the effects of sites out",
                check="too-few-sites",
            )
        return sums

    # --- linear: one dimension, the logarithm of the ratio ---

    def linear(self, step: RegressionStep) -> _Maximum:
        """Newton steps within bounds that close in on the ratio."""
        low, high, last = -math.inf, math.inf, math.inf
        point = math.log(self._steps.rows.clients / self._steps.rows.rows)
        least = point + math.log(_LEAST)
        while True:
            state = _Restricted.of(self._query, self._sums(step, math.exp(point)), none=False)
            if point == least and state.slope >= 0:
                return self._maximum(step, _Restricted.of(self._query, self._sums(step, 0.0), none=True), 0.0)
            low, high = (point, high) if state.slope < 0 else (low, point)
            move = -state.slope / state.bend if state.bend > 0 else -math.copysign(_LONGEST, state.slope)
            move = min(max(move, -_LONGEST), _LONGEST)
            if abs(move) < _STILL or last / 2 < abs(move) < _NEARLY_STILL:
                return self._maximum(step, state, math.exp(point))
            following = max(point + move, least)
            if not low < following < high:
                following = (low + high) / 2
            last, point = abs(move), following

    def _maximum(self, step: RegressionStep, state: _Restricted, ratio: float) -> _Maximum:
        return _Maximum(
            step=replace(step, coefficients=tuple(state.coefficients.tolist())),
            sums=state.sums,
            covariance=state.covariance,
            between=ratio * state.within,
            within=state.within,
            log_likelihood=-state.deviance / 2,
        )

    # --- other families: coefficients and the deviation between sites together ---

    def other(self, step: RegressionStep) -> _Maximum:
        """Newton steps, along which the likelihood grows; they begin at the coefficients without effects of sites."""
        size, sums = self._query.size, self._sums(step, 0.0)
        _, information = sums.curvature()
        if information[size, size] >= 0:  # the likelihood falls on both sides of 0
            return self._other(step, sums, information[:size, :size], 0.0)
        spread, last = _BEGIN, math.inf
        sums = self._sums(step, spread)
        while True:
            gradient, information = sums.curvature()
            values, vectors = np.linalg.eigh(information)
            bounded = np.maximum(np.abs(values), 1e-8 * np.abs(values).max())
            move = vectors @ ((vectors.T @ gradient) / bounded)
            point = np.append(step.coefficients, spread)
            length = float(np.abs(move).max() / max(1.0, np.abs(point).max()))
            if values[0] > 0 and (length < _STILL or last / 2 < length < _NEARLY_STILL):
                return self._other(step, sums, information, spread)
            last = length
            step, spread, sums = self._better(step, point, move, sums)

    def _better(
        self, step: RegressionStep, point: Array, move: Array, before: MixedSums
    ) -> tuple[RegressionStep, float, MixedSums]:
        """The step along the move, halved until the likelihood does not fall."""
        share = 1.0
        while True:
            *coefficients, spread = (point + share * move).tolist()
            following, spread = replace(step, coefficients=tuple(coefficients)), abs(spread)
            sums = self._sums(following, spread)
            slack = 1e-9 * (abs(before.log_likelihood) + sums.clients)
            if not sums.cut_off and sums.log_likelihood >= before.log_likelihood - slack:
                return following, spread, sums
            share /= 2

    def _other(self, step: RegressionStep, sums: MixedSums, information: Array, spread: float) -> _Maximum:
        size = self._query.size
        return _Maximum(
            step=step,
            sums=sums,
            covariance=np.asarray(np.linalg.inv(information)[:size, :size], np.float64),
            between=spread**2,
            within=1.0,
            log_likelihood=sums.log_likelihood,
        )

    def regression(self, maximum: _Maximum, nodes: int) -> Regression:
        """In the columns as they are. nodes: how many clients there are."""
        query, back = self._query, unscaled(self._query, maximum.step)
        linear = query.family == "linear"
        unit = query.target_scale if linear else 1.0
        likelihood = maximum.log_likelihood
        if linear:  # the restricted likelihood is one of the target and of the columns in their own units
            likelihood += np.linalg.slogdet(back)[1] - (maximum.sums.rows - query.size) * math.log(unit)
        return self._steps.regression(
            maximum.sums,
            back @ np.asarray(maximum.step.coefficients) * unit,
            back @ maximum.covariance @ back.T * unit**2,
            nodes,
            log_likelihood=float(likelihood),
            deviance=float(-2 * likelihood),
            dispersion=maximum.within * unit**2,
            sites=maximum.sums.sites,
            site_variance=maximum.between * unit**2,
        )
