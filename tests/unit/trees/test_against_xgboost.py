"""Trees from integer sums over sites are the trees that XGBoost's `hist` grows on the pooled rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.boosting import boosted_over_sites, made_table, xgboost_of

from fedcore.trees import BoostingSettings, Ensemble
from fedcore.trees.settings import LOGISTIC, SQUARED_ERROR

OBJECTIVES = (LOGISTIC, SQUARED_ERROR)


def splits_of(tree: dict[str, Any], missing: set[int]) -> list[tuple[Any, ...]]:
    """Of each inner node feature, threshold, and where a missing value goes if the feature ever lacks one."""
    rows = zip(
        tree["left_children"], tree["split_indices"], tree["split_conditions"], tree["default_left"], strict=True
    )
    return [
        (feature, np.float32(threshold), bool(left) if feature in missing else None) if child >= 0 else (None,)
        for child, feature, threshold, left in rows
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
