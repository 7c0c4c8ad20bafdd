"""Regressions with random intercepts of sites on all rows in one place, for `benchmarks/glm.py` to compare with.

A linear one is that of statsmodels' MixedLM. For a logistic one statsmodels has Bayesian approximations alone, so the
marginal likelihood is integrated here on a fine grid of intercepts around each site's mode, by the trapezoidal rule,
which for such integrands is exact to the last digits (Trefethen and Weideman, SIAM Review 56, 2014); its information is
a central difference of its gradient. Nothing is shared with fedcore, which takes 25 nodes of Gauss and Hermite.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

Estimates = tuple[dict[str, float], dict[str, float]]
"""Coefficients and standard errors by name."""
Array = NDArray[np.float64]

_POINTS: Final = np.linspace(-9.0, 9.0, 49)
"""Where a site's integrand is taken, in its own widths around its mode."""
_APART: Final = 1e-4
_STILL: Final = 1e-10


def mixed_linear(formula: str, frame: pd.DataFrame) -> Estimates:
    """By REML; the column `site` has the groups."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says so if it comes no closer than rounding lets it
        model = smf.mixedlm(formula, frame, groups="site")
        near = model.fit(reml=True, method=["powell"])  # from the usual start steps of BFGS go astray
        fitted = model.fit(start_params=near.params_object, reml=True, method=["bfgs"], gtol=1e-12)
    return dict(fitted.fe_params), dict(fitted.bse_fe)


def mixed_logistic(formula: str, frame: pd.DataFrame) -> Estimates:
    """By maximum likelihood, in Newton steps; the column `site` has the groups."""
    model = smf.logit(formula, frame)  # for its design alone
    names, scale = model.exog_names, np.append(np.abs(model.exog).max(axis=0), 1.0)
    inside = frame.site.to_numpy()
    sites = [(model.endog[inside == one], model.exog[inside == one] / scale[:-1]) for one in np.unique(inside)]
    point = np.append(np.zeros(len(names)), 0.5)
    while True:
        information = _information(sites, point)
        values, vectors = np.linalg.eigh(information)
        move = vectors @ ((vectors.T @ _gradient(sites, point)) / np.abs(values))
        point = point + move / max(1.0, float(np.abs(move).max()) / 2)
        if np.abs(move).max() < _STILL * max(1.0, np.abs(point).max()):
            break
    errors = np.sqrt(np.diag(np.linalg.inv(_information(sites, point))))
    return dict(zip(names, point / scale, strict=False)), dict(zip(names, errors / scale, strict=False))


def _information(sites: Sequence[tuple[Array, Array]], point: Array) -> Array:
    rows = [
        (_gradient(sites, point - step) - _gradient(sites, point + step)) / (2 * _APART)
        for step in _APART * np.eye(len(point))
    ]
    return np.asarray((np.array(rows) + np.array(rows).T) / 2)


def _gradient(sites: Sequence[tuple[Array, Array]], point: Array) -> Array:
    """Of the marginal log-likelihood by coefficients and deviation [p + 1]."""
    return np.asarray(np.sum([_gradient_of_site(y, x, point[:-1], float(point[-1])) for y, x in sites], axis=0))


def _gradient_of_site(y: Array, x: Array, coefficients: Array, deviation: float) -> Array:
    eta = x @ coefficients
    mode, width = _peak(y, eta, deviation)
    drawn = mode + width * _POINTS
    total = np.array([_log_likelihood(y, eta + deviation * one) - one**2 / 2 for one in drawn])
    chances = np.exp(total - logsumexp(total))
    residuals = np.array([y - expit(eta + deviation * one) for one in drawn])
    of_deviation = float(chances @ (drawn * residuals.sum(axis=1)))
    return np.append(x.T @ (chances @ residuals), of_deviation)


def _peak(y: Array, eta: Array, deviation: float) -> tuple[float, float]:
    """Where the integrand is largest, and its width there."""
    mode = 0.0
    for _ in range(100):
        mean: Any = expit(eta + deviation * mode)
        bend = 1 + deviation**2 * float((mean * (1 - mean)).sum())
        move = (deviation * float((y - mean).sum()) - mode) / bend
        mode += move
        if abs(move) < 1e-8:
            break
    return mode, bend**-0.5


def _log_likelihood(y: Array, eta: Array) -> float:
    return float((y * eta - np.logaddexp(0.0, eta)).sum())
