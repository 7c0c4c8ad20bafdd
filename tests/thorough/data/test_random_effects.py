"""Random intercepts of sites in logistic and Poisson regressions, against quadrature by brute force."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import integrate, optimize, special
from support.site_tables import TARGETS, Table, regress, sites


def brute_force(family: str, parts: Sequence[Table]) -> tuple[np.ndarray, np.ndarray, float]:
    """Estimates and errors of intercept, age, sex and the sites' deviation, and the log-likelihood, of scipy alone."""
    target = TARGETS[family]
    complete = [{name: values[~np.isnan(part["age"])] for name, values in part.items()} for part in parts]
    designs = [np.stack([np.ones(len(one["age"])), (one["age"] - 55) / 10, one["sex"]], axis=1) for one in complete]
    grid = np.linspace(-8, 8, 201)  # of a standard normal intercept, for the trapezoidal rule

    def value(theta: np.ndarray) -> float:
        total = 0.0
        for one, x in zip(complete, designs, strict=True):
            eta = (x @ theta[:3])[:, None] + theta[3] * grid
            y = one[target][:, None]
            if family == "logistic":
                each = y * eta - np.logaddexp(0, eta)
            else:
                each = y * eta - np.exp(eta) - special.gammaln(y + 1)
            height = each.sum(axis=0) - grid**2 / 2 - np.log(2 * np.pi) / 2
            total += height.max() + np.log(integrate.trapezoid(np.exp(height - height.max()), x=grid))
        return -total

    best = optimize.minimize(value, [-1.0, 0.3, -0.5, 0.5], method="BFGS", options={"gtol": 1e-8})
    point = best.x
    for _ in range(3):
        gradient, curvature = derivatives(value, point)
        point = point - np.linalg.solve(curvature, gradient)
    _, curvature = derivatives(value, point)
    return point, np.sqrt(np.diag(np.linalg.inv(curvature))), -value(point)


def derivatives(value: Callable[[np.ndarray], float], point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By central differences of fourth order."""
    size, width = len(point), 2e-3
    unit = np.eye(size) * width
    weights = {-2: 1 / 12, -1: -8 / 12, 1: 8 / 12, 2: -1 / 12}
    gradient = np.array([sum(w * value(point + k * one) for k, w in weights.items()) for one in unit]) / width
    curvature = np.zeros((size, size))
    middle = value(point)
    for i in range(size):
        bends = {-2: -1 / 12, -1: 16 / 12, 1: 16 / 12, 2: -1 / 12}
        curvature[i, i] = (sum(w * value(point + k * unit[i]) for k, w in bends.items()) - 30 / 12 * middle) / width**2
        for j in range(i):
            mixed = sum(
                a * b * value(point + k * unit[i] + m * unit[j]) for k, a in weights.items() for m, b in weights.items()
            )
            curvature[i, j] = curvature[j, i] = mixed / width**2
    return gradient, curvature


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_other_families_are_those_of_brute_force(family: str) -> None:
    parts = sites(6, 0.7, rows=25)
    target = TARGETS[family]
    ours = regress(parts, f"{target} ~ age + sex", family)
    point, errors, likelihood = brute_force(family, parts)
    intercept = point[0] - 5.5 * point[1]
    assert ours.coefficients == pytest.approx([intercept, point[1] / 10, point[2]], rel=1e-6)
    assert ours.errors[1:] == pytest.approx([errors[1] / 10, errors[2]], rel=1e-5)
    assert np.sqrt(ours.site_variance or 0.0) == pytest.approx(abs(point[3]), rel=1e-6)
    assert ours.log_likelihood == pytest.approx(likelihood, rel=1e-9)
    assert ours.queries <= 20
