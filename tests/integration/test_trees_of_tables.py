"""Boosted trees as a person meets them who has a table at each of three sites: what the app's README says, in order."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.commands import forked
from support.deployment import Deployment
from support.later import Later

from fedcore.cli.new.examples import patients_csv
from fedcore.comparison.results import RunResult
from fedcore.data import Split, TableSchema, table_data
from fedcore.state import ModelState
from fedcore.trees import Ensemble
from fedcore.trees.cuts import Cuts

xgboost = Later("xgboost")
datasets, linear_model, metrics, pipeline, preprocessing = (
    Later(f"sklearn.{name}") for name in ("datasets", "linear_model", "metrics", "pipeline", "preprocessing")
)
SITES, TREES = 3, 2
FEW = f"num-server-rounds={TREES} test-every=1"


def done(*words: object, folder: Path) -> str:
    ended = forked(*words, folder=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app that was written from the table of one site; each has a third of the rows."""
    head, *rows = patients_csv().splitlines()
    tables = tmp_path / "tables"
    tables.mkdir()
    for site in range(SITES):
        (tables / f"site-{site}.csv").write_text("\n".join([head, *rows[site::SITES]]) + "\n", encoding="utf-8")
    done("new", "clinic", "--csv", "tables/site-0.csv", "--target", "died", "--model", "trees", folder=tmp_path)
    return tmp_path / "clinic"


def test_three_sites_with_tables_of_their_own_grow_trees(tmp_path: Path, app: Path) -> None:
    readme = (app / "README.md").read_text(encoding="utf-8")
    commands = [line.partition("#")[0].strip() for line in re.findall(r"^fedcore .*$", readme, re.M)]
    by_name = {command.split()[1]: command for command in commands}
    assert by_name.keys() == {"simulate", "compare", "predict", "export", "client"}
    with Deployment.open(tmp_path / "sites", clients=SITES) as deployment:
        deployment.app = app
        deployment.start_server()
        for site, name in enumerate(deployment.federation.client_names()):
            deployment.start_client(name, "--node-config", f'csv="{tmp_path / "tables" / f"site-{site}.csv"}"')
        words = ("--operator", deployment.federation.operator, "--out", "../model.safetensors", "--run-config", FEW)
        settings = ("--set", f"min-clients={SITES}")
        summary = json.loads(done("run", ".", *words, *settings, "--json", folder=app).splitlines()[-1])
    assert (summary["status"], summary["rounds"]) == ("finished", TREES)
    assert {"eval_loss", "eval_acc", "auc", "best_round"} == summary["metrics"].keys()
    (tmp_path / "clinic" / "new.csv").write_text((tmp_path / "tables" / "site-1.csv").read_text(encoding="utf-8"))
    answers = list(csv.DictReader(done(*by_name["predict"].split()[1:], folder=app).splitlines()))
    done(*by_name["export"].split()[1:], folder=app)
    booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
    rows = TableSchema.load(app / "schema.toml").coded().read(tmp_path / "tables" / "site-1.csv").x
    types = {"feature_names": booster.feature_names, "feature_types": booster.feature_types}
    theirs = booster.predict(xgboost.DMatrix(rows, **types, enable_categorical=True))
    assert np.array([float(row["probability of 1"]) for row in answers]) == pytest.approx(theirs, abs=1e-6)


def test_numbers_from_drawn_rows_and_columns_until_the_loss_rises(tmp_path: Path, app: Path) -> None:
    """The years of each patient: categories, missing values, and at the end a model whose last trees are left out."""
    tables = sorted((tmp_path / "tables").glob("*.csv"))
    done("new", "years", "--csv", "tables/site-0.csv", "--target", "years", "--model", "trees", folder=tmp_path)
    app = tmp_path / "years"
    config = "num-server-rounds=9 early-stopping-rounds=2 learning-rate=0.9 subsample=0.6 colsample-bytree=0.6"
    with Deployment.open(tmp_path / "sites", clients=SITES) as deployment:
        deployment.app = app
        deployment.start_server()
        for name, table in zip(deployment.federation.client_names(), tables, strict=True):
            deployment.start_client(name, "--node-config", f'csv="{table}"')
        words = ("--operator", deployment.federation.operator, "--out", "model.safetensors", "--run-config", config)
        settings = ("--set", f"min-clients={SITES}")
        summary = json.loads(done("run", "years", *words, *settings, "--json", folder=tmp_path).splitlines()[-1])
    best = int(summary["metrics"]["best_round"])
    assert summary["rounds"] == best + 2 < 9
    done("export", "model.safetensors", "--app", "years", "--to", "xgboost", "--out", "model.json", folder=tmp_path)
    done(
        "predict", "model.safetensors", "--app", "years", "--input", tables[1], "--out", "answers.csv", folder=tmp_path
    )
    booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
    assert (booster.num_boosted_rounds(), booster.best_iteration) == (best, best - 1)
    schema = TableSchema.load(app / "schema.toml").coded()
    types = {"feature_names": booster.feature_names, "feature_types": booster.feature_types}

    def predicted(x: np.ndarray) -> np.ndarray:
        return booster.predict(xgboost.DMatrix(x, **types, enable_categorical=True))

    answers = csv.DictReader((tmp_path / "answers.csv").read_text(encoding="utf-8").splitlines())
    theirs = predicted(schema.read(tables[1]).x) * schema.target_unit
    assert np.array([float(row["years"]) for row in answers]) == pytest.approx(theirs, rel=1e-6)
    tests = [table_data(schema, {}, {"csv": str(table)}, app=app)[1] for table in tables]
    errors = np.concatenate([predicted(part.x) - part.y for part in tests])
    rmse = json.loads((tmp_path / "model.results.json").read_text(encoding="utf-8"))["evaluate"][str(best)]["rmse"]
    assert rmse == pytest.approx(float(np.sqrt(np.mean(errors**2))), rel=1e-5)


def test_trees_are_compared_with_a_logistic_regression_in_one_place_and_at_each_site_alone(tmp_path: Path) -> None:
    """As docs/howto/trees.md has it, with fewer trees; both reach what other libraries do on the pooled rows."""
    table, names = tmp_path / "tables" / "tumours.csv", ("tumours", "tumours-logistic")
    table.parent.mkdir()
    datasets.load_breast_cancer(as_frame=True).frame.to_csv(table, index=False)
    for name, model in zip(names, ("trees", "linear"), strict=True):
        done("new", name, "--csv", table, "--target", "target", "--model", model, folder=tmp_path)
    out = tmp_path / "tables" / "comparison"  # below --data-dir, which the app may read
    words = ("--modes", "federated,centralized,local,xgboost", "--clients", 2, "--out", out, "--data-dir", "tables")
    few = ("--run-config", "num-server-rounds=6 test-every=6 early-stopping-rounds=0", "--no-plain-check")
    done("compare", *names, *words, "--run-config", 'csv="tumours.csv"', *few, folder=tmp_path)
    report = json.loads((out / "report.json").read_text())
    assert {one["name"]: one["status"] for one in report["fairness"] if one["status"] == "differs"} == {}
    found = {
        mode["label"]: run["curve"][-1]["metrics"] for mode, run in zip(report["modes"], report["runs"], strict=True)
    }
    both = {f"{mode} ({name})" for name in names for mode in ("federated", "centralized", "local")}
    assert found.keys() == both | {"xgboost"}
    assert [text for text in report["left_out"] if text.startswith(f"{names[1]}: xgboost")] == report["left_out"]
    results, models = {}, {}
    for run in sorted((out / "apps" / "tumours" / "runs").iterdir()):
        result = RunResult.load(run)
        results[result.kind], models[result.kind] = result, run / "model.safetensors"
    assert {kind: one.status for kind, one in results.items()} == dict.fromkeys(results, "finished")
    trees = [ModelState.open(models[kind]).sha256() for kind in ("federated", "centralized")]
    assert trees[0] == trees[1]
    assert len({one.initial_sha256 for one in results.values()}) == 1
    points = [[point.metrics for point in results[kind].curve] for kind in ("federated", "centralized")]
    assert points[0] == points[1]
    assert len({one.samples for one in results.values()}) == 1
    assert "auc/exact" in results["local"].metrics
    assert results["federated"].bytes_up["client-1"] > 0
    state = ModelState.open(models["federated"])
    trees_auc, own_bins_auc, logistic_auc = of_other_libraries(
        TableSchema.load(tmp_path / "tumours" / "schema.toml"), table, Ensemble.from_arrays(dict(state)).cuts
    )
    assert found["xgboost"]["auc/exact"] == pytest.approx(own_bins_auc, abs=1e-6)
    for mode in ("federated", "centralized"):
        assert found[f"{mode} (tumours)"]["auc/exact"] == pytest.approx(trees_auc, abs=0.002)
        assert found[f"{mode} (tumours-logistic)"]["auc/exact"] == pytest.approx(logistic_auc, abs=0.01)


def of_other_libraries(schema: TableSchema, table: Path, cuts: Cuts) -> tuple[float, float, float]:
    """The AUC from the rows in one place: of XGBoost on the same bins and on its own, and of a logistic regression."""
    train, test = pooled(schema.coded(), table)
    settings = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.2, "tree_method": "hist"}
    booster = xgboost.train(settings, xgboost.DMatrix(bins_of(train.x, cuts), train.y), 6)
    scores = [booster.predict(xgboost.DMatrix(bins_of(test.x, cuts)))]
    booster = xgboost.train({**settings, "max_bin": 32}, xgboost.DMatrix(train.x, train.y), 6)
    scores.append(booster.predict(xgboost.DMatrix(test.x)))
    train, test = pooled(schema, table)
    steps = (preprocessing.StandardScaler(), linear_model.LogisticRegression())
    scores.append(pipeline.make_pipeline(*steps).fit(train.x, train.y).decision_function(test.x))
    same_bins, own_bins, logistic = (float(metrics.roc_auc_score(test.y, one)) for one in scores)
    return same_bins, own_bins, logistic


def bins_of(x: NDArray[np.float32], cuts: Cuts) -> NDArray[np.float32]:
    """The number of the bin of each value, which has a bin of its own in XGBoost."""
    ends = np.split(cuts.values, cuts.starts[1:-1])
    columns = [np.searchsorted(part, column, side="right") for part, column in zip(ends, x.T, strict=True)]
    return np.stack(columns, axis=1).astype(np.float32)


def pooled(schema: TableSchema, table: Path) -> tuple[Split, Split]:
    """Training and test rows of two sites that divide the table."""
    halves = [
        table_data(schema, {"csv": str(table)}, {"partition-id": site, "num-partitions": 2}, table) for site in (0, 1)
    ]
    first, second = (
        Split(x=np.concatenate([one.x for one in parts]), y=np.concatenate([one.y for one in parts]))
        for parts in zip(*halves, strict=True)
    )
    return first, second
