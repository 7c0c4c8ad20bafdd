"""Trees from integer sums over sites are the trees that XGBoost's `hist` grows on the pooled rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.boosting import boosted_over_sites, made_table, model_of_xgboost, with_categories, xgboost_of
from support.later import Later

from fedcore.trees import BoostingSettings, Ensemble
from fedcore.trees.ensemble import class_margins
from fedcore.trees.settings import LOGISTIC, SOFTPROB, SQUARED_ERROR

xgboost = Later("xgboost")
OBJECTIVES = (LOGISTIC, SQUARED_ERROR)


def splits_of(tree: dict[str, Any], missing: set[int]) -> list[tuple[Any, ...]]:
    """Of each inner node feature, threshold or categories, and where a missing value goes if the feature lacks one."""
    rows = zip(
        tree["left_children"], tree["split_indices"], tree["split_conditions"], tree["default_left"], strict=True
    )
    parts = zip(tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True)
    categories = {node: tuple(tree["categories"][start : start + size]) for node, start, size in parts}
    assert sorted(categories) == np.flatnonzero(tree["split_type"]).tolist()
    return [
        (feature, categories.get(node, np.float32(threshold)), bool(left) if feature in missing else None)
        if child >= 0
        else (None,)
        for node, (child, feature, threshold, left) in enumerate(rows)
    ]


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(OBJECTIVES),
    depth=st.integers(1, 5),
    reg_lambda=st.sampled_from((0.0, 0.5, 1.0, 7.0)),
    gamma=st.sampled_from((0.0, 0.3, 2.0)),
    least=st.sampled_from((0.0, 1.0, 4.0)),
    rate=st.sampled_from((0.05, 0.3, 1.0)),
)
def test_one_tree_is_xgboosts(
    seed: int, objective: str, depth: int, reg_lambda: float, gamma: float, least: float, rate: float
) -> None:
    x, y = made_table(seed, objective=objective)
    settings = BoostingSettings(
        objective=objective, max_depth=depth, learning_rate=rate, reg_lambda=reg_lambda, gamma=gamma,
        min_child_weight=least,
    )  # fmt: skip
    booster, cuts = xgboost_of(x, y, settings, trees=1, base_score=0.5)
    ours = boosted_over_sites(x, y, settings, cuts, trees=1, base_score=0.5, sites=3)
    compare_trees(ours, booster, x)


def compare_trees(ours: Ensemble, booster: Any, x: NDArray[np.float32]) -> None:
    missing = set(np.flatnonzero(np.isnan(x).any(axis=0)).tolist())
    theirs = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    for one, other in zip(ours.to_xgboost()["learner"]["gradient_booster"]["model"]["trees"], theirs, strict=True):
        assert splits_of(one, missing) == splits_of(other, missing)
        leaves = np.array(one["left_children"]) < 0
        np.testing.assert_allclose(
            np.array(one["base_weights"])[leaves], np.array(other["base_weights"])[leaves], rtol=2e-5, atol=2e-6
        )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(4))
def test_twenty_trees_are_xgboosts(objective: str, seed: int) -> None:
    x, y = made_table(seed, objective=objective, rows=2000)
    settings = BoostingSettings(objective=objective, max_depth=4)
    booster, cuts = xgboost_of(x, y, settings, trees=20, base_score=0.4)
    ours = boosted_over_sites(x, y, settings, cuts, trees=20, base_score=0.4, sites=5)
    compare_trees(ours, booster, x)


@pytest.mark.parametrize(("seed", "rate"), [(0, 0.3), (1, 1.0), (2, 0.1)])
def test_a_tree_for_each_class_is_xgboosts(seed: int, rate: float) -> None:
    x, y = made_table(seed, objective=SOFTPROB, rows=1000)
    settings = BoostingSettings(objective=SOFTPROB, num_class=3, max_depth=3, learning_rate=rate)
    booster, cuts = xgboost_of(x, y, settings, trees=8, base_score=None)
    margins = class_margins(np.bincount(y.astype(int)))
    theirs = json.loads(booster.save_raw("json"))["learner"]["learner_model_param"]["base_score"]
    np.testing.assert_allclose(margins, json.loads(theirs), rtol=2e-6)
    ours = boosted_over_sites(
        x, y, settings, cuts, trees=8, base_score=0.0, sites=4, class_margins=tuple(json.loads(theirs))
    )
    compare_trees(ours, booster, x)


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(OBJECTIVES),
    levels=st.sampled_from([(2,), (3, 12), (5, 3), (4, 4), (70,)]),
    onehot=st.sampled_from((1, 4, 100)),
    most=st.sampled_from((2, 5, 64)),
    least=st.sampled_from((0.0, 1.0, 4.0)),
)
def test_a_tree_with_categories_is_xgboosts(
    seed: int, objective: str, levels: tuple[int, ...], onehot: int, most: int, least: float
) -> None:
    x, y = made_table(seed, objective=objective)
    x, y = with_categories(x, y, seed, levels)
    settings = BoostingSettings(
        objective=objective, max_depth=4, max_cat_to_onehot=onehot, max_cat_threshold=most, min_child_weight=least
    )
    booster, cuts = xgboost_of(x, y, settings, trees=1, base_score=0.5, levels=levels)
    compare_trees(boosted_over_sites(x, y, settings, cuts, trees=1, base_score=0.5, sites=3), booster, x)


def test_twenty_trees_with_categories_are_xgboosts() -> None:
    x, y = made_table(3, objective=LOGISTIC, rows=2000)
    x, y = with_categories(x, y, 3, (3, 20))
    settings = BoostingSettings(max_depth=4)
    booster, cuts = xgboost_of(x, y, settings, trees=20, base_score=0.4, levels=(3, 20))
    compare_trees(boosted_over_sites(x, y, settings, cuts, trees=20, base_score=0.4, sites=5), booster, x)


@pytest.mark.parametrize("objective", [*OBJECTIVES, SOFTPROB])
@pytest.mark.parametrize("levels", [(), (3, 20)])
def test_a_model_of_xgboost_answers_the_same_in_our_form(objective: str, levels: tuple[int, ...]) -> None:
    ours, booster, (x, _) = model_of_xgboost(objective, levels)
    assert ours.rounds == 5
    types = ["c"] * len(levels) + ["float"] * (x.shape[1] - len(levels))
    theirs = booster.predict(xgboost.DMatrix(x, feature_types=types, enable_categorical=True))
    np.testing.assert_allclose(ours.predict(x), theirs, rtol=2e-5, atol=2e-6)
    again = Ensemble.from_arrays(ours.to_arrays())
    np.testing.assert_array_equal(again.predict(x), ours.predict(x))
