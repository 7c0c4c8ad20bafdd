"""A model of boosted trees: as arrays of one layout, as JSON that XGBoost reads, and its predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.boosting import boosted_over_sites, made_table
from support.later import Later
from support.raising import raises

from fedcore.errors import ConfigurationError
from fedcore.trees import BoostingSettings, Cuts, Ensemble, Scale, TreeGrowth
from fedcore.trees.cuts import LAST_CUT
from fedcore.trees.evaluation import figures_of, loss_sums
from fedcore.trees.settings import LOGISTIC, SQUARED_ERROR

xgboost = Later("xgboost")
OBJECTIVES = (LOGISTIC, SQUARED_ERROR)


def grown(objective: str, trees: int = 3) -> tuple[Ensemble, np.ndarray, np.ndarray]:
    x, y = made_table(3, objective=objective)
    cuts = Cuts.of([[-1.0, 0.0, 0.5, 1.0, 2.0, LAST_CUT]] * x.shape[1])
    settings = BoostingSettings(objective=objective, max_depth=3)
    return boosted_over_sites(x, y, settings, cuts, trees=trees, base_score=0.3, sites=3), x, y


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_xgboost_reads_it_and_predicts_the_same(objective: str) -> None:
    model, x, _ = grown(objective)
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(model.to_xgboost()), "utf-8"))
    names = list(model.names)
    assert booster.feature_names == names
    theirs = booster.predict(xgboost.DMatrix(x, feature_names=names))
    np.testing.assert_allclose(model.predict(x), theirs, rtol=1e-6, atol=1e-7)


def test_arrays_keep_it_and_their_layout() -> None:
    model, x, _ = grown(LOGISTIC)
    model.room = 5
    arrays = model.to_arrays()
    copy = Ensemble.from_arrays(arrays)
    assert np.array_equal(copy.margins(x), model.margins(x))
    assert len(copy.trees) == 3
    copy.trees.append(copy.trees[0])
    larger = copy.to_arrays()
    assert {name: (a.dtype, a.shape) for name, a in arrays.items()} == {
        name: (a.dtype, a.shape) for name, a in larger.items()
    }


def test_other_arrays_are_refused() -> None:
    arrays = grown(LOGISTIC, trees=1)[0].to_arrays()
    lacking = {name: values for name, values in arrays.items() if name != "trees/cuts"}
    short = {**arrays, "trees/feature": arrays["trees/feature"][:, :-1]}
    for other in ({}, lacking, short, {**arrays, "trees/facts": np.zeros(4, np.uint8)}):
        with raises(ConfigurationError, check="no-trees"):
            Ensemble.from_arrays(other)


def test_equal_columns_split_by_the_first() -> None:
    cuts, settings, scale = Cuts.of([[1.0, LAST_CUT]] * 3), BoostingSettings(max_depth=1), Scale.of(8.0, 8.0)
    growth = TreeGrowth(settings, cuts, scale, np.array([0, 8 << scale.hessian_bits]))
    half = np.array([[-4, 4], [4, 4]]) << scale.gradient_bits
    column = half
    growth.answer(np.concatenate([column, column, column], axis=1)[None])
    assert growth.tree.feature.tolist() == [0, -1, -1]
    assert growth.questions == []
    assert growth.tree.weight[1:].tolist() == pytest.approx([0.24, -0.24])


@pytest.mark.parametrize(
    ("key", "value"),
    [("objective", "rank:ndcg"), ("max_depth", 0), ("learning_rate", 0.0), ("gamma", -1.0), ("reg_lambda", np.nan)],
)
def test_settings_that_make_no_sense_are_refused(key: str, value: object) -> None:
    with raises(ConfigurationError, check=key.replace("_", "-")):
        BoostingSettings(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_figures_of_sites_are_those_of_all_rows(objective: str) -> None:
    from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score

    model, x, y = grown(objective)
    margins, parts = model.margins(x), np.array_split(np.arange(len(x)), 3)
    sums = np.sum([loss_sums(objective, margins[part], y[part]) for part in parts], axis=0)
    figures = figures_of(objective, sums.tolist(), len(x))
    if objective == SQUARED_ERROR:
        assert figures["eval_loss"] == pytest.approx(mean_squared_error(y, margins), rel=1e-5)
        return
    predictions = model.predict(x)
    assert figures["eval_loss"] == pytest.approx(log_loss(y, predictions), rel=1e-5)
    assert figures["auc"] == pytest.approx(roc_auc_score(y, predictions), abs=5e-3)
    assert figures["eval_acc"] == np.mean((predictions > 0.5) == y)
