"""A model of boosted trees: as arrays of one layout, as JSON that XGBoost reads, and its predictions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.boosting import boosted_over_sites, made_table, with_categories
from support.later import Later
from support.raising import raises

from fedcore.errors import ConfigurationError
from fedcore.trees import BoostingSettings, Cuts, Ensemble, Scale, TreeGrowth
from fedcore.trees.cuts import LAST_CUT
from fedcore.trees.evaluation import figures_of, loss_sums
from fedcore.trees.settings import LOGISTIC, SOFTPROB, SQUARED_ERROR

pandas, xgboost = Later("pandas"), Later("xgboost")
OBJECTIVES = (LOGISTIC, SQUARED_ERROR, SOFTPROB)


def grown(
    objective: str, trees: int = 3, levels: tuple[int, ...] = ()
) -> tuple[Ensemble, NDArray[np.float32], NDArray[np.float32]]:
    x, y = with_categories(*made_table(3, objective=objective), 3, levels)
    cuts = Cuts.of([[-1.0, 0.0, 0.5, 1.0, 2.0, LAST_CUT]] * x.shape[1], dict(enumerate(levels)))
    several = objective == SOFTPROB
    settings = BoostingSettings(objective=objective, max_depth=3, num_class=3 if several else 0)
    ensemble = boosted_over_sites(
        x, y, settings, cuts, trees=trees, base_score=0.3, sites=3, class_margins=(0.4, -0.1, -0.3) if several else ()
    )
    return ensemble, x, y


def loaded(model: Ensemble) -> Any:
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(model.to_xgboost()), "utf-8"))
    return booster


@pytest.mark.parametrize("levels", [(), (3, 12)])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_xgboost_reads_it_and_predicts_the_same(objective: str, levels: tuple[int, ...]) -> None:
    model, x, _ = grown(objective, levels=levels)
    booster, names = loaded(model), list(model.names)
    types = ["c"] * len(levels) + ["float"] * (len(names) - len(levels))
    assert (booster.feature_names, booster.feature_types) == (names, types)
    assert booster.num_boosted_rounds() == model.rounds == 3
    rows = xgboost.DMatrix(x, feature_names=names, feature_types=types, enable_categorical=True)
    theirs = booster.predict(rows)
    np.testing.assert_allclose(model.predict(x), theirs, rtol=2e-6, atol=1e-7)
    assert theirs.shape == ((len(x), 3) if objective == SOFTPROB else (len(x),))


def test_xgboost_knows_the_names_of_categories() -> None:
    """A data frame may have them in another order, and XGBoost finds them by their names."""
    model, x, _ = grown(LOGISTIC, levels=(3, 12))
    frame = pandas.DataFrame(x, columns=list(model.names))
    for at in (0, 1):
        known = ~np.isnan(x[:, at])
        texts = [model.levels[at][int(code)] if there else None for code, there in zip(x[:, at], known, strict=True)]
        frame[model.names[at]] = pandas.Categorical(texts, categories=model.levels[at][::-1])
    theirs = loaded(model).predict(xgboost.DMatrix(frame, enable_categorical=True))
    np.testing.assert_allclose(model.predict(x), theirs, rtol=2e-6, atol=1e-7)


def test_the_best_round_is_xgboosts_best_iteration() -> None:
    model, x, _ = grown(SOFTPROB, trees=4)
    model.best = 1, 0.25
    best = Ensemble.from_arrays(model.to_arrays()).at_best()
    booster = loaded(best)
    assert (booster.best_iteration, booster.best_score, booster.num_boosted_rounds()) == (1, 0.25, 2)
    rows = xgboost.DMatrix(x, feature_names=list(model.names))
    theirs = loaded(model).predict(rows, iteration_range=(0, 2))
    np.testing.assert_allclose(best.predict(x), theirs, rtol=2e-6, atol=1e-7)


def test_the_names_of_columns_are_such_that_xgboost_takes_them() -> None:
    names = ["dose [mg]", "dose (mg)", "age<60", "age", "stage=II"]
    booster = loaded(Ensemble(BoostingSettings(), Cuts.of([[LAST_CUT]] * 5), tuple(names), 0.5, 1))
    assert booster.feature_names == ["dose (mg)", "dose (mg)_", "ageunder60", "age", "stage=II"]
    booster.predict(xgboost.DMatrix(np.zeros((1, 5)), feature_names=booster.feature_names))


@pytest.mark.parametrize(("objective", "levels"), [(LOGISTIC, ()), (SOFTPROB, (3, 12))])
def test_arrays_keep_it_and_their_layout(objective: str, levels: tuple[int, ...]) -> None:
    model, x, _ = grown(objective, levels=levels)
    count = len(model.trees)
    model.room = count + 2
    arrays = model.to_arrays()
    copy = Ensemble.from_arrays(arrays)
    assert np.array_equal(copy.margins(x), model.margins(x))
    assert (len(copy.trees), copy.levels, copy.class_margins) == (count, model.levels, model.class_margins)
    copy.trees.append(copy.trees[0])
    copy.best = 1, 0.5
    larger = copy.to_arrays()
    assert {name: (a.dtype, a.shape) for name, a in arrays.items()} == {
        name: (a.dtype, a.shape) for name, a in larger.items()
    }


def test_other_arrays_are_refused() -> None:
    arrays = grown(LOGISTIC, trees=1)[0].to_arrays()
    lacking = {name: values for name, values in arrays.items() if name != "trees/cuts"}
    short = {**arrays, "trees/feature": arrays["trees/feature"][:, :-1]}
    several = grown(SOFTPROB, trees=1, levels=(3,))[0].to_arrays()
    narrow = {**several, "trees/categories": several["trees/categories"][:, :, :0]}
    for other in ({}, lacking, short, narrow, {**arrays, "trees/facts": np.zeros(4, np.uint8)}):
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
    [
        ("objective", "rank:ndcg"),
        ("max_depth", 0),
        ("max_depth", 2.5),
        ("learning_rate", 0.0),
        ("gamma", -1.0),
        ("gamma", "0"),
        ("reg_lambda", np.nan),
        ("subsample", 0.0),
        ("subsample", 1.5),
        ("colsample_bytree", -1),
        ("num_class", 3),
        ("max_cat_threshold", 0),
        ("seed", -1),
        ("min_child_weight", True),
    ],
)
def test_settings_that_make_no_sense_are_refused(key: str, value: object) -> None:
    with raises(ConfigurationError, check=key.replace("_", "-")):
        BoostingSettings(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [0, 1, 501])
def test_classes_are_several(classes: int) -> None:
    with raises(ConfigurationError, check="num-class"):
        BoostingSettings(objective=SOFTPROB, num_class=classes)


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
    if objective == SOFTPROB:
        assert figures["eval_acc"] == np.mean(predictions.argmax(axis=1) == y)
        return
    assert figures["auc"] == pytest.approx(roc_auc_score(y, predictions), abs=5e-3)
    assert figures["eval_acc"] == np.mean((predictions > 0.5) == y)


@pytest.mark.parametrize(
    ("objective", "weight", "least"), [(LOGISTIC, 3.0, 12), (SOFTPROB, 3.0, 6), (SQUARED_ERROR, 5.5, 6)]
)
def test_no_node_has_fewer_rows_than_the_settings_say(objective: str, weight: float, least: int) -> None:
    x, y = made_table(3, objective=objective)
    classes = 3 if objective == SOFTPROB else 0
    settings = BoostingSettings(objective=objective, max_depth=5, num_class=classes, min_child_weight=weight)
    assert settings.least_rows == least
    cuts = Cuts.of([[-1.0, 0.0, 0.5, 1.0, 2.0, LAST_CUT]] * x.shape[1])
    model = boosted_over_sites(x, y, settings, cuts, trees=2, base_score=0.5, sites=3, class_margins=(0.0,) * classes)
    counts = [np.bincount(tree.leaves_of(x)) for tree in model.trees]
    assert least <= min(count[count > 0].min() for count in counts) < 4 * least
