"""Boosted trees as an ONNX program: onnxruntime gives the margins of XGBoost's trees, with categories and gaps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.boosting import model_of_xgboost
from support.later import Later
from support.raising import raises

from fedcore.data.graphs.trees_graph import trees_module
from fedcore.errors import ConfigurationError
from fedcore.trees.settings import LOGISTIC, OBJECTIVES

onnxruntime = Later("onnxruntime")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("levels", [(), (3, 20)], ids=str)
def test_onnxruntime_gives_the_same_margins(objective: str, levels: tuple[int, ...]) -> None:
    model, _, (x, _) = model_of_xgboost(objective, levels)
    missing = x.copy()
    missing[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    session = onnxruntime.InferenceSession(trees_module(model).SerializeToString())
    for rows in (x, missing):
        (margins,) = session.run(None, {"features": rows})
        expected = model.margins(rows).reshape(len(rows), -1)
        np.testing.assert_allclose(margins, expected, rtol=1e-5, atol=1e-5)


def test_a_tree_of_one_leaf_and_a_model_without_trees() -> None:
    model, _, (x, _) = model_of_xgboost(LOGISTIC, (), trees=1)
    (tree,) = model.trees
    tree.feature[0], tree.feature[1:] = -1, -2
    (margins,) = onnxruntime.InferenceSession(trees_module(model).SerializeToString()).run(None, {"features": x})
    np.testing.assert_allclose(margins[:, 0], model.margins(x), rtol=1e-6)
    with raises(ConfigurationError, check="no-trees"):
        trees_module(replace(model, trees=[]))
