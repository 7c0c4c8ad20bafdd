"""Options of boosted trees in whole runs in memory: classes, categories, early stopping and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray
from support.boosting import boosted_over_sites, made_table, with_categories, xgboost_parameters
from support.later import Later
from support.raising import raises

from fedcore import LocalJob, trees_app, trees_server
from fedcore.data import Split
from fedcore.errors import AppError, ConfigurationError, RunFailed
from fedcore.federation import Policy
from fedcore.flower.memory_app import load_app
from fedcore.flower.records import arrays_from_state
from fedcore.flower.trees.client import TreesApp
from fedcore.flower.trees.question import Question, TreeQuestion
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState
from fedcore.trees import BoostingSettings, Cuts, Ensemble, RegressionTree, Scale
from fedcore.trees.cuts import LAST_CUT
from fedcore.trees.sampling import drawn_features, drawn_rows
from fedcore.trees.settings import LOGISTIC, SOFTPROB, SQUARED_ERROR

xgboost = Later("xgboost")
SITES = 3
LEVELS = MappingProxyType({"x0": ("a", "b", "c"), "x1": tuple(f"level {i}" for i in range(9))})
Rows = tuple[NDArray[np.float32], NDArray[np.float32]]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


def rows_of(objective: str, seed: int = 4, count: int = 240) -> Rows:
    """Two columns of categories, and three of numbers."""
    x, y = made_table(seed, objective=objective, rows=count)
    return with_categories(x, y, seed, tuple(map(len, LEVELS.values())))


def two_parts(objective: str) -> tuple[Rows, Rows]:
    """Training and test rows of one table."""
    x, y = rows_of(objective, 1, 360)
    return (x[:240], y[:240]), (x[240:], y[240:])


def app_of(
    train: Rows, test: Rows, categories: Mapping[str, Sequence[str]] = LEVELS, y: tuple[float, float] = (0.0, 1.0)
) -> TreesApp:
    """An app whose first site has most of the rows, sorted by their targets, and whose last has no test rows."""

    def data(job: LocalJob) -> tuple[Split, Split]:
        site = int(job.node["partition-id"])
        order = np.argsort(train[1], kind="stable")
        part = np.array_split(order, [2 * len(order) // 3, 3 * len(order) // 4])[site]
        tested = np.array_split(np.arange(len(test[0])), [len(test[0]) // 4, len(test[0])])[site]
        return Split(x=train[0][part], y=train[1][part]), Split(x=test[0][tested], y=test[1][tested])

    bounds = {**{f"x{i}": (-5.0, 5.0) for i in range(train[0].shape[1])}, "y": y}
    return trees_app(data=data, bounds=lambda config: bounds, categories=categories)


def trained(
    app: TreesApp,
    mode: str = "plain",
    initial: ModelState | None = None,
    policy: Policy | None = None,
    **config: Any,
) -> Ensemble:
    run_config = {
        "num-server-rounds": 2,
        "max-depth": 2,
        "bins": 8,
        **{k.replace("_", "-"): v for k, v in config.items()},
    }
    with load_app((app, trees_server(app)), run_config) as loaded:
        settings = JobSettings.from_mapping({"aggregation": mode})
        simulation = Simulation(
            app=loaded.app,
            clients=SITES,
            run_config=loaded.app.run_config,
            settings=settings,
            initial=initial,
            policy=policy,
        )
        state = simulation.run().state
    assert state is not None
    return Ensemble.from_arrays({name: state[name] for name in state})


def same_trees(one: Ensemble, other: Ensemble) -> bool:
    arrays = one.to_arrays(), other.to_arrays()
    return all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0] if name != "trees/best")


@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_trees_of_classes_and_categories_are_those_of_the_pooled_rows(mode: str) -> None:
    x, y = rows_of(SOFTPROB)
    model = trained(app_of((x, y), (x, y), y=(0.0, 2.0)), mode, objective=SOFTPROB, num_class=3, max_depth=3)
    assert (len(model.trees), model.rounds, model.levels[:2]) == (6, 2, tuple(LEVELS.values()))
    assert any(tree.categories.any() for tree in model.trees)
    alone = boosted_over_sites(
        x, y, model.settings, model.cuts, trees=2, base_score=0.0, sites=2, class_margins=model.class_margins
    )
    alone.levels = model.levels
    assert same_trees(model, alone)
    names = list(model.names)
    binned, _ = pooled(model, x, y, x, y, 2)
    theirs = binned.predict(as_bins(model, x, y))
    np.testing.assert_allclose(model.predict(x), theirs, rtol=1e-5, atol=1e-6)
    assert names == [f"x{i}" for i in range(5)]


def as_bins(model: Ensemble, x: NDArray[np.float32], y: NDArray[np.float32], ref: Any = None) -> Any:
    """XGBoost's matrix of the numbers of the bins, so that it splits at the same places."""
    bins = model.cuts.bins_of(x)
    values = np.where(bins < 0, np.nan, bins - model.cuts.starts[:-1]).astype(np.float32)
    types = ["c" if levels else "float" for levels in model.levels]
    return xgboost.QuantileDMatrix(values, y, max_bin=256, feature_types=types, enable_categorical=True, ref=ref)


def pooled(
    model: Ensemble, x: NDArray[np.float32], y: NDArray[np.float32], tx: NDArray[np.float32], ty: NDArray[np.float32],
    rounds: int, **more: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """XGBoost on the pooled rows, which finds the base scores itself, and what it says of the pooled test rows.

    It knows no bin above those of the training rows, so a test row there counts in the last of them, as it does here.
    """
    data, figures = as_bins(model, x, y), {}
    tx = np.where(np.isnan(tx), np.nan, np.minimum(tx, np.nanmax(x, axis=0)))
    booster = xgboost.train(
        xgboost_parameters(model.settings, None, 256), data, rounds, evals=[(as_bins(model, tx, ty, data), "test")],
        evals_result=figures, verbose_eval=False, **more,
    )  # fmt: skip
    return booster, figures["test"]


@pytest.mark.parametrize(("objective", "classes"), [(LOGISTIC, 0), (SQUARED_ERROR, 0), (SOFTPROB, 3)])
def test_the_run_stops_when_xgboost_does(objective: str, classes: int) -> None:
    train, test = two_parts(objective)
    low, high = float(min(0, train[1].min(), test[1].min())), float(max(train[1].max(), test[1].max()))
    more = {"objective": objective, "max_depth": 3, "learning_rate": 0.4}
    several = {"num_class": classes} if classes else {}
    app = app_of(train, test, y=(low, high))
    model = trained(app, num_server_rounds=20, early_stopping_rounds=2, **more, **several)
    stop = xgboost.callback.EarlyStopping(rounds=2, save_best=True)
    booster, figures = pooled(model, *train, *test, 20, callbacks=[stop])
    assert model.best is not None
    assert 0 < model.best[0] == booster.best_iteration == model.rounds - 1 < 17
    assert model.best[1] == pytest.approx(booster.best_score, rel=1e-5)
    theirs = booster.predict(as_bins(model, *test))
    np.testing.assert_allclose(model.predict(test[0]), theirs, rtol=2e-5, atol=2e-6)
    assert len(figures[next(iter(figures))]) == model.rounds + 2


def test_a_run_that_continues_stops_at_the_same_round() -> None:
    train, test = two_parts(LOGISTIC)
    config = {"num_server_rounds": 20, "learning_rate": 0.5, "early_stopping_rounds": 2}
    whole = trained(app_of(train, test), **config)
    assert whole.best is not None
    assert 0 < whole.best[0] < 17
    part = Ensemble.from_arrays(whole.to_arrays())
    part.trees, part.best, part.room = part.trees[:1], None, 1
    again = trained(app_of(train, test), initial=ModelState.from_arrays(part.to_arrays()), **config)
    assert same_trees(again, whole)
    late = Ensemble.from_arrays(whole.to_arrays())
    late.best = 0, 0.0  # lower than any later one
    again = trained(app_of(train, test), initial=ModelState.from_arrays(late.to_arrays()), **config)
    assert again.rounds == 1


def test_trees_grow_from_the_rows_and_features_that_are_drawn() -> None:
    """XGBoost grows the same tree from these rows and columns alone."""
    x, y = rows_of(LOGISTIC)
    app = app_of((x, y), (x, y))
    config = {"num_server_rounds": 1, "max_depth": 3, "subsample": 0.6, "colsample_bytree": 0.5, "seed": 7}
    model = trained(app, **config)
    assert same_trees(model, trained(app_of((x, y), (x, y)), "secure", **config))
    assert not same_trees(model, trained(app, **{**config, "seed": 8}))
    features = drawn_features(model.settings, 0, 5)
    assert len(features) == 2
    assert set(np.unique(model.trees[0].feature)) <= {-1, -2, *features.tolist()}


def test_draws_belong_to_a_tree_and_a_site() -> None:
    app = app_of(rows_of(LOGISTIC), rows_of(LOGISTIC))
    settings = trained(app, subsample=0.5, colsample_bytree=0.4, seed=3).settings
    draws = [drawn_rows(settings, tree, site, 4000) for tree, site in [(0, 1), (0, 2), (1, 1), (0, 1)]]
    assert np.array_equal(draws[0], draws[3])
    assert not any(np.array_equal(draws[0], other) for other in draws[1:3])
    assert all(abs(len(draw) - 2000) < 200 for draw in draws)
    assert len({tuple(drawn_features(settings, tree, 10)) for tree in range(8)}) > 4
    assert {len(drawn_features(settings, tree, 10)) for tree in range(8)} == {4}


def test_a_federation_without_test_rows_cannot_stop_early() -> None:
    x, y = rows_of(LOGISTIC)
    with raises(AppError, check="no-test-rows"):
        trained(app_of((x, y), (x[:0], y[:0])), early_stopping_rounds=2)


@pytest.mark.parametrize(
    ("objective", "bad", "check"),
    [(SOFTPROB, 3, "class-target"), (SOFTPROB, 0.5, "class-target"), (LOGISTIC, np.nan, "target-missing")],
)
def test_targets_that_are_no_classes_end_the_run_before_the_first_tree(objective: str, bad: float, check: str) -> None:
    x, y = rows_of(objective)
    y[3] = bad
    classes = {"num_class": 3} if objective == SOFTPROB else {}
    with raises(AppError, check=check):
        trained(app_of((x, y), (x, y), y=(0.0, 2.0)), objective=objective, **classes)


def model_of(objective: str) -> Ensemble:
    """Without a tree."""
    classes = 3 if objective == SOFTPROB else 0
    levels = {at: len(part) for at, part in enumerate(LEVELS.values())}
    return Ensemble(
        BoostingSettings(objective=objective, num_class=classes, max_depth=2), Cuts.of([[0.0, LAST_CUT]] * 5, levels),
        tuple(f"x{i}" for i in range(5)), 0.5, classes or 1, class_margins=(0.0,) * classes,
        levels=(*LEVELS.values(), (), (), ()),
    )  # fmt: skip


def answer(app: TreesApp, model: Ensemble, **changes: Any) -> Any:
    """The first site's sums of the root, and its histogram, of the first class."""
    one = TreeQuestion(
        nodes=np.array([0]),
        features=np.arange(5),
        tree=RegressionTree.empty(model.settings.nodes, model.cuts.most_levels),
    )
    config = Question(trees={0: one}, scale=Scale.of(1e3, 1e3), start=0, stop=99).as_config(model)
    config.update({f"trees-{key.replace('_', '-')}": value for key, value in changes.items()})
    arrays = arrays_from_state(ModelState.from_arrays(model.to_arrays()))
    message = Message(RecordDict({"arrays": arrays, "config": config}), 0, "query.tree_sums")
    node = {"partition-id": 0}
    context = Context(run_id=1, node_id=0, node_config=node, state=RecordDict(), run_config={})
    return app(message, context).content.metric_records["trees"]["sums"]


@pytest.mark.parametrize(
    ("column", "bad", "check"),
    [
        (0, 3, "no-such-category"),
        (1, -1, "no-such-category"),
        (0, 0.5, "no-such-category"),
        (None, 3, "class-target"),
        (None, np.nan, "not-finite"),
        (3, np.inf, "not-finite"),
    ],
)
def test_a_site_refuses_rows_that_no_tree_can_grow_from(column: int | None, bad: float, check: str) -> None:
    x, y = rows_of(SOFTPROB)
    first = int(np.argsort(y, kind="stable")[0])
    app = app_of((x, y), (x, y))
    assert len(answer(app, model_of(SOFTPROB))) == 2 + 2 * (3 + 9 + 3 * 2)
    if column is None:
        y[:] = bad
    else:
        x[first, column] = bad
    with raises(AppError, check=check):
        answer(app_of((x, y), (x, y)), model_of(SOFTPROB))


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": [3]}, {"max_depth": 1}, {"least_rows": 99},
        {"nodes": [7 * 3]}, {"nodes": [-1]}, {"nodes": []}, {"nodes": [0, 0]}, {"features": [1, 0]}, {"features": []},
        {"inner": [0], "splits": [5], "thresholds": [0.0], "default_left": [0]},
        {"inner": [0], "splits": [1], "thresholds": [], "default_left": [0]},
        {"category_nodes": [0], "categories": [16]}, {"category_nodes": [0], "categories": [-1]},
        {"category_nodes": [0], "categories": []}, {"gradient_bits": "x"},
    ],
)  # fmt: skip
def test_a_query_that_asks_for_what_is_not_there_is_refused(changes: dict[str, Any]) -> None:
    rows = rows_of(SOFTPROB)
    with raises(AppError, check="trees-query"):
        answer(app_of(rows, rows), model_of(SOFTPROB), **changes)


@pytest.mark.parametrize(
    ("key", "value", "check"),
    [
        ("early_stopping_rounds", -1, "early-stopping-rounds"), ("early_stopping_rounds", 2.5, "early-stopping-rounds"),
        ("test_every", 0, "early-stopping-rounds"), ("test_every", 4, "early-stopping-rounds"),
        ("num_server_rounds", 0, "num-server-rounds"), ("bins", 257, "bins"), ("min_nodes", 0, "min-nodes"),
        ("num_class", 1, "num-class"), ("subsample", 0.0, "subsample"), ("seed", "x", "seed"),
    ],
)  # fmt: skip
def test_a_run_config_that_makes_no_sense_is_refused(key: str, value: object, check: str) -> None:
    rows = rows_of(SOFTPROB)
    config = {"objective": SOFTPROB, "num_class": 3, "early_stopping_rounds": 3, key: value}
    with raises(ConfigurationError, check=check):
        trained(app_of(rows, rows, y=(0.0, 2.0)), **config)


def test_an_owner_bounds_what_a_run_may_set() -> None:
    rows = rows_of(LOGISTIC)
    config = {"num_server_rounds": 1, "max_depth": 2, "min_child_weight": 5.0}
    allowed = replace(Policy.own(SITES), max_tree_depth=2, min_rows_in_node=20)
    assert trained(app_of(rows, rows), "secure", policy=allowed, **config).rounds == 1
    for check, change in (("tree-too-deep", {"max_tree_depth": 1}), ("node-too-small", {"min_rows_in_node": 21})):
        with pytest.raises(RunFailed, match=check):
            trained(app_of(rows, rows), "secure", policy=replace(allowed, **change), **config)


def test_bounds_of_the_target_hold_all_classes() -> None:
    rows = rows_of(SOFTPROB)
    with raises(AppError, check="class-bounds"):
        trained(app_of(rows, rows), objective=SOFTPROB, num_class=3)


@pytest.mark.parametrize(
    "categories", [{"x9": ("a", "b")}, {"x0": ()}, {"x0": ("a", "a")}, {"x0": map(str, range(1001))}]
)
def test_categories_are_of_columns_that_there_are(categories: dict[str, Any]) -> None:
    rows = rows_of(LOGISTIC)
    with raises(ConfigurationError, check="categories"):
        trained(app_of(rows, rows, {name: tuple(levels) for name, levels in categories.items()}))
