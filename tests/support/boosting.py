"""Boosted trees over made-up sites in this process, and XGBoost's own on the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.trees import BoostingSettings, Cuts, Ensemble, Scale, TreeGrowth, histogram_sums
from fedcore.trees.histograms import as_integers, gradients
from fedcore.trees.settings import LOGISTIC

Table = tuple[NDArray[np.float32], NDArray[np.float32]]


def made_table(seed: int, *, objective: str, rows: int = 400, features: int = 5, missing: float = 0.1) -> Table:
    """Rows with a few distinct values in the first column, ties, and missing values in all but the last."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, features)).astype(np.float32)
    x[:, 0] = draw.integers(0, 4, rows)
    signal = x[:, 0] - 1.5 + np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] * x[:, -1]
    x[:, :-1][draw.random((rows, features - 1)) < missing] = np.nan
    noisy = signal + draw.normal(0, 0.5, rows)
    y = (noisy > 0) if objective == LOGISTIC else noisy
    return x, y.astype(np.float32)


def xgboost_of(
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    settings: BoostingSettings,
    *,
    trees: int,
    base_score: float,
    max_bin: int = 16,
) -> tuple[Any, Cuts]:
    """A Booster trained on all rows, and the cuts that it used."""
    import xgboost

    data = xgboost.QuantileDMatrix(x, y, max_bin=max_bin)
    parameters = {
        "tree_method": "hist", "objective": settings.objective, "max_depth": settings.max_depth, "nthread": 1,
        "eta": settings.learning_rate, "lambda": settings.reg_lambda, "gamma": settings.gamma, "max_bin": max_bin,
        "min_child_weight": settings.min_child_weight, "base_score": base_score,
    }  # fmt: skip
    starts, values = data.get_quantile_cut()
    # The first of each feature is the lower bound, which is no cut.
    cuts = [values[starts[f] + 1 : starts[f + 1]] for f in range(x.shape[1])]
    return xgboost.train(parameters, data, trees), Cuts.of(cuts)


def boosted_over_sites(
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    settings: BoostingSettings,
    cuts: Cuts,
    *,
    trees: int,
    base_score: float,
    sites: int,
) -> Ensemble:
    """The ensemble that grows from the sites' sums; each site holds a random part of the rows, one of them none."""
    owner = np.random.default_rng(1).integers(0, max(1, sites - 1), len(x))
    names = tuple(f"x{i}" for i in range(x.shape[1]))
    ensemble = Ensemble(settings, cuts, names, base_score, trees)
    bound = len(x) if settings.objective == LOGISTIC else float(np.abs(y - base_score).sum() * 2 + 1)
    scale = Scale.of(bound, len(x))
    tables = [(x[owner == site], y[owner == site]) for site in range(sites)]
    for _ in range(trees):
        parts = [site_values(ensemble, scale, *table) for table in tables]
        root = np.sum([[g.sum(), h.sum()] for g, h in parts], axis=0)
        growth = TreeGrowth(settings, cuts, scale, root)
        while nodes := growth.questions:
            growth.answer(np.sum([
                histogram_sums(cuts.bins_of(rows), growth.tree.leaves_of(rows), np.array(nodes), part, cuts.bins)
                for (rows, _), part in zip(tables, parts, strict=True)
            ], axis=0))  # fmt: skip
        ensemble.trees.append(growth.tree)
    return ensemble


def site_values(
    ensemble: Ensemble, scale: Scale, x: NDArray[np.float32], y: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Integers of the gradients and hessians of one site's rows."""
    g, h = gradients(ensemble.settings.objective, ensemble.margins(x), y)
    return as_integers(g, scale.gradient_bits), as_integers(h, scale.hessian_bits)
