"""Random intercepts of sites: what every client answers, out of which the sum over sites is the marginal likelihood.

The intercepts are drawn from a normal distribution, so that the likelihood of all rows is a product over sites, and its
logarithm, gradient and information are sums. That of a linear regression has a closed form (Pinheiro and Bates,
Mixed-Effects Models, 2000, section 2.2): with n rows of a site and a ratio r of the variances between and within sites,
Z' V^-1 Z = W + rho m m', where W are the products within the site, m its means, and rho = n / (1 + r n). For the other
families each site integrates over its intercept by Gauss and Hermite's quadrature around its own mode (Liu and Pierce,
Biometrika 81, 1994). The sums at several ratios are several weighted sums of what sites have, see docs/threat-model.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, gammaln, logsumexp

from fedcore.data.regression.design import CompleteRows
from fedcore.data.regression.question import COUNTS, SUMS, Array, Family, mixed_sums
from fedcore.data.regression.step import LARGEST_ETA, RegressionStep, RowSums, numbers_of, sums_of, symmetric
from fedcore.errors import ConfigurationError
from fedcore.system.plain_json import NO_OTHER_KEYS

_NODES: Final = 25
_MODE_STEPS: Final = 60
_MODE_STILL: Final = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStep:
    """One question: the marginal likelihood at these coefficients and this variance of the intercepts.

    step: center, scale and coefficients.
    spread: of a linear regression the ratio of the variance between sites to that within; else the deviation between.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    step: RegressionStep
    spread: float

    def __post_init__(self) -> None:
        if self.step.query.sites != "random" or not 0 <= self.spread < math.inf:
            raise ConfigurationError("the query is no step of a regression with random effects of sites")

    @property
    def length(self) -> int:
        """How many numbers a client answers."""
        query = self.step.query
        return COUNTS + query.size + 2 * mixed_sums(query.size, query.family)

    def answer(self, columns: Mapping[str, ArrayLike]) -> list[float]:
        """One client's numbers [length]; raises AppError for a column that is missing or holds no numbers."""
        query = self.step.query
        rows = CompleteRows.of(query, columns)
        design = rows.design()
        sums = np.zeros(mixed_sums(query.size, query.family))
        if len(design):
            scaled, eta = self.step.scaled(design)
            target = query.scaled_target(rows.target)
            sums[SUMS - 1 : SUMS + 1] = target.sum(), 1.0
            if query.family == "linear":
                sums[SUMS + 1 :] = _linear_sums(np.column_stack([scaled, target]), self.spread)
            else:
                sums[0], sums[SUMS + 1 :] = marginal_likelihood(query.family, target, scaled, eta, self.spread)
        return numbers_of(rows.counts, np.count_nonzero(design, axis=0).astype(np.float64), sums)

    def sums(self, numbers: Sequence[float], clients: int) -> MixedSums:
        """What the sums over all clients say."""
        query = self.step.query
        head, sums, cut_off = sums_of(numbers, query.size, clients, self.length)
        return MixedSums(
            **head,
            target=float(sums[SUMS - 1]),
            log_likelihood=float(sums[0]),
            sites=round(sums[SUMS]),
            values=sums[SUMS + 1 :],
            cut_off=cut_off,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSums(RowSums):
    """The sums over clients.

    log_likelihood: 0 if the regression is linear.
    sites: those that have a row.
    values: what `linear` or `curvature` is made of.
    cut_off: whether a number was larger than a client may answer, the likelihood excepted.
    """

    log_likelihood: float
    sites: int
    values: Array
    cut_off: bool

    def linear(self) -> tuple[Array, Array]:
        """log|V| and Z' V^-1 Z of a linear regression, Z the columns and the target, each with both derivatives by the
        logarithm of the ratio, float64 [3], [3, p + 1, p + 1].
        """
        size = len(self.nonzero) + 1
        return self.values[:3], np.stack([symmetric(part, size) for part in np.split(self.values[3:], 3)])

    def curvature(self) -> tuple[Array, Array]:
        """Gradient and observed information by coefficients and deviation, float64 [p + 1], [p + 1, p + 1]."""
        size = len(self.nonzero) + 1
        return self.values[:size], symmetric(self.values[size:], size)


def _linear_sums(z: Array, ratio: float) -> Array:
    """What `MixedSums.linear` is made of, of one site; nothing of it grows faster than the number of rows."""
    count, mean = len(z), z.mean(axis=0)
    centered = z - mean
    rho = count / (1 + ratio * count)
    share = ratio * rho
    upper, square = np.triu_indices(z.shape[1]), np.outer(mean, mean)
    matrices = [centered.T @ centered + rho * square, -rho * share * square, (2 * share - 1) * rho * share * square]
    logarithm = [math.log1p(ratio * count), share, share * (1 - share)]
    return np.concatenate([logarithm, *(matrix[upper] for matrix in matrices)])


def marginal_likelihood(
    family: Family, target: Array, scaled: Array, eta: Array, deviation: float
) -> tuple[float, Array]:
    """The logarithm of a site's likelihood, its gradient and the upper triangle of its information, in a row.

    Args:
        family: logistic or Poisson.
        target: float64 [n].
        scaled: the design [n, p].
        eta: the predictions without the site's intercept [n].
        deviation: of the intercepts.
    """
    mode, width = _mode(family, target, eta, deviation)
    nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
    drawn, size = mode + math.sqrt(2) * width * nodes, scaled.shape[1]
    logarithms, scores = np.zeros(_NODES), np.zeros((_NODES, size + 1))
    informations = np.zeros((_NODES, size + 1, size + 1))
    for at, one in enumerate(drawn.tolist()):
        likelihood, residual, weight = _response(family, target, eta + deviation * one)
        logarithms[at] = likelihood - one**2 / 2
        scores[at] = [*(scaled.T @ residual), one * residual.sum()]
        weighted = scaled * weight[:, None]
        informations[at, :size, :size] = weighted.T @ scaled
        informations[at, size, :size] = informations[at, :size, size] = one * weighted.sum(axis=0)
        informations[at, size, size] = one**2 * weight.sum()
    logarithms += np.log(weights) + nodes**2
    total = float(logsumexp(logarithms))
    chances = np.exp(logarithms - total)
    gradient = chances @ scores
    spread = (scores - gradient) * np.sqrt(chances)[:, None]
    information = np.tensordot(chances, informations, axes=1) - spread.T @ spread
    return total + math.log(width / math.sqrt(math.pi)), np.concatenate(
        [gradient, information[np.triu_indices(size + 1)]]
    )


def _response(family: Family, target: Array, eta: Array) -> tuple[float, Array, Array]:
    """Log-likelihood, residuals and weights."""
    if family == "logistic":
        mean = expit(eta)
        return float((target * eta - np.logaddexp(0.0, eta)).sum()), target - mean, mean * (1 - mean)
    eta = np.clip(eta, -LARGEST_ETA, LARGEST_ETA)
    mean = np.exp(eta)
    return float((target * eta - mean - gammaln(target + 1)).sum()), target - mean, mean


def _mode(family: Family, target: Array, eta: Array, deviation: float) -> tuple[float, float]:
    """Where the integrand is largest, and its width there, by Newton steps that are halved until it grows."""

    def at(one: float) -> tuple[float, float, float]:
        likelihood, residual, weight = _response(family, target, eta + deviation * one)
        slope = deviation * float(residual.sum()) - one
        return likelihood - one**2 / 2, slope, 1 + deviation**2 * float(weight.sum())

    mode, (height, slope, bend) = 0.0, at(0.0)
    for _ in range(_MODE_STEPS):
        move = slope / bend
        if abs(move) < _MODE_STILL * max(1.0, abs(mode)):
            break
        while True:
            following = at(mode + move)
            if following[0] >= height - 1e-12 * abs(height) or abs(move) < _MODE_STILL:
                break
            move /= 2
        mode, (height, slope, bend) = mode + move, following
    return mode, 1 / math.sqrt(bend)
