"""The tables of benchmarks/trees.py: rows that lie at sites, and new rows to test on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from benchmarks.made_tables import HEART, TARGET, heart_disease
from fedcore.cli.new.columns import coarse_bounds
from fedcore.data import Split
from fedcore.data.files import DATA_VARIABLE
from fedcore.trees.settings import LOGISTIC, SOFTPROB

FEATURES: Final = 10
NEW_ROWS: Final = 20_000

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedTable:
    """Rows of sites, and new ones.

    x, y: features [rows, d] with nan for a missing value, and targets [rows].
    owner: the site of each row, from 0 on.
    classes: of the target, if there are more than two; else 0.
    """

    x: Floats
    y: Floats
    owner: NDArray[np.int64]
    new_x: Floats
    new_y: Floats
    classes: int = 0

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Between which values each feature and the target lie: the next powers of ten, as `fedcore new` takes them."""
        columns = (column[~np.isnan(column)].astype(np.float64) for column in self.x.T)
        features = {f"x{index}": coarse_bounds(column) for index, column in enumerate(columns)}
        return {**features, "y": (0.0, float(self.classes or 2) - 1)}

    @property
    def objective(self) -> str:
        return SOFTPROB if self.classes else LOGISTIC

    @property
    def sites(self) -> int:
        return int(self.owner.max()) + 1

    def of_site(self, site: int) -> Split:
        """The rows of one site, their targets as whole numbers."""
        own = self.owner == site
        return Split(x=self.x[own], y=self.y[own].astype(np.int64))


def made(rows: int, sites: int, seed: int) -> DividedTable:
    """Features of several scales, a tenth of most columns missing, and a target that depends on pairs of them.

    Sites have 1, 2, 3 and so on shares of the rows, and each a share of positive rows of its own, from few to most.
    """
    rng = np.random.default_rng(seed)
    x, y = _drawn(rows, rng)
    new_x, new_y = _drawn(NEW_ROWS, rng)
    sizes, positive = np.arange(1, sites + 1), rng.uniform(0.05, 0.95, sites)
    owner = np.zeros(rows, np.int64)
    for target, weights in ((1, sizes * positive), (0, sizes * (1 - positive))):
        of_target = np.flatnonzero(y == target)
        owner[of_target] = rng.choice(sites, len(of_target), p=weights / weights.sum())
    owner[rng.permutation(rows)[:sites]] = np.arange(sites)  # none is empty
    return DividedTable(x=x, y=y, owner=owner, new_x=new_x, new_y=new_y)


def _drawn(rows: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    x[:, 0] = rng.integers(0, 5, rows)
    logits = 0.6 * (x[:, 0] - 2) + np.sin(2 * x[:, 1]) + x[:, 2] * x[:, 3] - 0.5 * x[:, 4] ** 2 + 0.5
    y = rng.random(rows) < 1 / (1 + np.exp(-logits))
    x[:, :-1][rng.random((rows, FEATURES - 1)) < 0.1] = np.nan
    return x, y.astype(np.float32)


def hearts(seed: int) -> DividedTable:
    """Four hospitals with 920 patients, of whom a third are new; categories as columns of 0 and 1."""
    cohort = heart_disease(Path(os.environ[DATA_VARIABLE]), np.random.default_rng(seed))
    tables = [*cohort.sites, cohort.new]
    together = pd.get_dummies(pd.concat(tables, ignore_index=True), dtype=float)
    x, y = together.drop(columns=TARGET).to_numpy(np.float32), together[TARGET].to_numpy(np.float32)
    owner = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    old = owner < len(cohort.sites)
    return DividedTable(x=x[old], y=y[old], owner=owner[old], new_x=x[~old], new_y=y[~old])


def has_hearts() -> bool:
    """Whether the data of the hospitals are here."""
    return (Path(os.environ.get(DATA_VARIABLE, "")) / HEART).is_dir() if os.environ.get(DATA_VARIABLE) else False


def digits(seed: int) -> DividedTable:
    """1,797 digits of 61 pixels, a third of them new, at five sites that have two classes for the most part."""
    rng = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    x = x[:, x.max(axis=0) > 0]
    owner = np.where(rng.random(len(y)) < 0.8, y // 2, rng.integers(0, 5, len(y))).astype(np.int64)
    new, x, y = rng.random(len(y)) < 1 / 3, x.astype(np.float32), y.astype(np.float32)
    return DividedTable(x=x[~new], y=y[~new], owner=owner[~new], new_x=x[new], new_y=y[new], classes=10)
