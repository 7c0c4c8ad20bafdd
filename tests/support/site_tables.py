"""Tables of sites that differ, and a regression with random effects of sites out of their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from fedcore.data.regression.mixed import MixedStep
from fedcore.data.regression.mixed_fit import fit_mixed
from fedcore.data.regression.newton import Regression
from fedcore.data.regression.resolve import regression_query
from fedcore.data.regression.step import RegressionStep

Table = dict[str, np.ndarray]
BOUNDS = {"age": (0.0, 120.0), "sex": (0.0, 1.0), "cost": (0.0, 20_000.0)}
TARGETS = {"linear": "cost", "logistic": "sick", "poisson": "stays"}
WORD = 2.0**8
"""A sum has at least 8 bits after the point."""


def sites(count: int = 8, spread: float = 0.7, seed: int = 0, rows: int = 60) -> list[Table]:
    """Sites of very unequal size, whose patients differ."""
    chance = np.random.default_rng(seed)
    parts = []
    for at in range(count):
        size = int(rows * (0.4 + 2 * at / count))
        age, sex = chance.normal(55 + at, 10, size), chance.integers(0, 2, size).astype(float)
        effect = spread * chance.normal()
        eta = -1 + 0.03 * (age - 55) - 0.5 * sex + effect
        parts.append(
            {
                "age": np.where(chance.random(size) < 0.03, np.nan, age),
                "sex": sex,
                "cost": 5000 + 1000 * eta + chance.normal(0, 800, size),
                "sick": (chance.random(size) < special.expit(eta)).astype(float),
                "stays": chance.poisson(np.exp(np.minimum(eta, 9))).astype(float),
                "site": np.full(size, float(at)),
            }
        )
    return parts


def pool(parts: Sequence[Table], *, incomplete: bool = False) -> Table:
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {name: values[incomplete | ~np.isnan(rows["age"])] for name, values in rows.items()}


def asking(parts: Sequence[Table]) -> Callable[[RegressionStep | MixedStep], tuple[list[float], int]]:
    """Sums of what the clients answer, each number as coarse as in a sum."""

    def ask(step: RegressionStep | MixedStep) -> tuple[list[float], int]:
        numbers = [np.round(np.asarray(step.answer(part)) * WORD) / WORD for part in parts]
        assert {len(one) for one in numbers} == {step.length}
        return np.sum(numbers, axis=0).tolist(), len(parts)

    return ask


def regress(parts: Sequence[Table], formula: str, family: str) -> Regression:
    query = regression_query(formula, family=family, bounds=BOUNDS, sites="random")
    return fit_mixed(query, asking(parts), nodes=len(parts))
