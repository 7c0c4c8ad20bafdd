"""Boosted trees over made-up sites in this process, and XGBoost's own on the same rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.trees import BoostingSettings, Cuts, Ensemble, RegressionTree, Scale, TreeGrowth, histogram_sums
from fedcore.trees.histograms import as_integers, gradients
from fedcore.trees.settings import LOGISTIC, SOFTPROB, SQUARED_ERROR

Table = tuple[NDArray[np.float32], NDArray[np.float32]]


def made_table(seed: int, *, objective: str, rows: int = 400, features: int = 5, missing: float = 0.1) -> Table:
    """Rows with a few distinct values in the first column, ties, and missing values in all but the last.

    The targets are three classes, two, or numbers.
    """
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, features)).astype(np.float32)
    x[:, 0] = draw.integers(0, 4, rows)
    signal = x[:, 0] - 1.5 + np.sin(2 * x[:, 1]) + 0.5 * x[:, 2] * x[:, -1]
    x[:, :-1][draw.random((rows, features - 1)) < missing] = np.nan
    noisy = signal + draw.normal(0, 0.5, rows)
    classes = {SOFTPROB: np.digitize(noisy, [-0.5, 1.5]), LOGISTIC: noisy > 0, SQUARED_ERROR: noisy}
    return x, classes[objective].astype(np.float32)


def with_categories(x: NDArray[np.float32], y: NDArray[np.float32], seed: int, levels: tuple[int, ...]) -> Table:
    """The table with its first columns replaced by categories, whose targets differ, some of them missing."""
    draw, x = np.random.default_rng(seed), x.copy()
    for feature, count in enumerate(levels):
        lean = draw.permutation(count)[np.digitize(y, np.quantile(y, np.linspace(0, 1, count + 1)[1:-1]))]
        codes = np.where(draw.random(len(x)) < 0.3, lean, draw.integers(0, count, len(x)))
        x[:, feature] = np.where(draw.random(len(x)) < 0.1, np.nan, codes)
        x[:count, feature] = np.arange(count)  # each of them is there
    return x, y


def xgboost_of(
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    settings: BoostingSettings,
    *,
    trees: int,
    base_score: float | None,
    max_bin: int = 16,
    levels: tuple[int, ...] = (),
    **more: Any,
) -> tuple[Any, Cuts]:
    """A Booster trained on all rows, and the cuts that it used.

    Args:
        base_score: None for XGBoost's own.
        levels: how many categories the first columns have.
        more: for `xgboost.train`.
    """
    import xgboost

    types = ["c"] * len(levels) + ["float"] * (x.shape[1] - len(levels))
    data = xgboost.QuantileDMatrix(x, y, max_bin=max_bin, feature_types=types, enable_categorical=True)
    starts, values = data.get_quantile_cut()
    # The first of each column of numbers is the lower bound, which is no cut.
    cuts = [values[starts[f] + 1 : starts[f + 1]] for f in range(x.shape[1])]
    booster = xgboost.train(xgboost_parameters(settings, base_score, max_bin), data, trees, **more)
    return booster, Cuts.of(cuts, dict(enumerate(levels)))


def model_of_xgboost(objective: str, levels: tuple[int, ...], *, trees: int = 5) -> tuple[Ensemble, Any, Table]:
    """A model that XGBoost grew, in our form; the booster itself; and the table.

    Args:
        levels: of each column of categories, which come first.
    """
    x, y = made_table(5, objective=objective)
    if levels:
        x, y = with_categories(x, y, 5, levels)
    settings = BoostingSettings(objective=objective, num_class=3 if objective == SOFTPROB else 0, max_depth=4)
    booster, cuts = xgboost_of(x, y, settings, trees=trees, base_score=None, levels=levels)
    names = tuple(f"x{at}" for at in range(x.shape[1]))
    called = tuple(tuple(f"level {code}" for code in range(count)) for count in levels)
    called += ((),) * (len(names) - len(levels))
    first = Ensemble(settings, cuts, names, 0.5, trees * settings.groups, levels=called)
    return first.with_xgboost(json.loads(booster.save_raw("json"))), booster, (x, y)


def xgboost_parameters(settings: BoostingSettings, base_score: float | None, max_bin: int) -> dict[str, Any]:
    """XGBoost's for the same trees."""
    parameters = {
        "tree_method": "hist", "objective": settings.objective, "max_depth": settings.max_depth, "nthread": 1,
        "eta": settings.learning_rate, "lambda": settings.reg_lambda, "gamma": settings.gamma, "max_bin": max_bin,
        "min_child_weight": settings.min_child_weight, "max_cat_to_onehot": settings.max_cat_to_onehot,
        "max_cat_threshold": settings.max_cat_threshold,
    }  # fmt: skip
    several = {"num_class": settings.num_class} if settings.num_class else {}
    return {**parameters, **several, **({} if base_score is None else {"base_score": base_score})}


def boosted_over_sites(
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    settings: BoostingSettings,
    cuts: Cuts,
    *,
    trees: int,
    base_score: float,
    sites: int,
    class_margins: tuple[float, ...] = (),
) -> Ensemble:
    """The ensemble that grows from the sites' sums; each site holds a random part of the rows, one of them none.

    Args:
        trees: rounds, each with a tree for each class if there are several.
    """
    owner = np.random.default_rng(1).integers(0, max(1, sites - 1), len(x))
    names = tuple(f"x{i}" for i in range(x.shape[1]))
    sizes = np.diff(cuts.starts)
    levels = tuple(
        tuple(f"level {code}" for code in range(sizes[at] if at in cuts.categories else 0)) for at in range(len(names))
    )
    ensemble = Ensemble(
        settings, cuts, names, base_score, trees * settings.groups, class_margins=class_margins, levels=levels
    )
    bound = float(np.abs(y - base_score).sum() * 2 + 1) if settings.objective == SQUARED_ERROR else len(x)
    scale = Scale.of(bound, len(x))
    tables = [(x[owner == site], y[owner == site]) for site in range(sites)]
    for _ in range(trees):
        parts = [site_values(ensemble, scale, *table) for table in tables]
        ensemble.trees += [
            _grown(ensemble, scale, tables, [(g[:, at], h[:, at]) for g, h in parts]) for at in range(settings.groups)
        ]
    return ensemble


def _grown(
    ensemble: Ensemble, scale: Scale, tables: list[Table], parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> RegressionTree:
    root = np.sum([[g.sum(), h.sum()] for g, h in parts], axis=0)
    cuts, growth = ensemble.cuts, TreeGrowth(ensemble.settings, ensemble.cuts, scale, root)
    while nodes := growth.questions:
        growth.answer(np.sum([
            histogram_sums(cuts.bins_of(rows), growth.tree.leaves_of(rows), np.array(nodes), part, cuts.bins)
            for (rows, _), part in zip(tables, parts, strict=True)
        ], axis=0))  # fmt: skip
    return growth.tree


def site_values(
    ensemble: Ensemble, scale: Scale, x: NDArray[np.float32], y: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Integers of the gradients and hessians of one site's rows, each [rows, classes]."""
    g, h = gradients(ensemble.settings.objective, ensemble.margins(x), y)
    shape = len(x), ensemble.settings.groups
    return as_integers(g, scale.gradient_bits).reshape(shape), as_integers(h, scale.hessian_bits).reshape(shape)
