"""Boosted trees as a person meets them who has a table at each of three sites: what the app's README says, in order."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.commands import forked
from support.deployment import Deployment
from support.later import Later

from fedcore.cli.new.examples import patients_csv
from fedcore.comparison.results import RunResult
from fedcore.data import TableSchema, table_data
from fedcore.state import ModelState

xgboost = Later("xgboost")
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


def test_federating_trees_is_compared_with_one_place_and_with_each_site_alone(tmp_path: Path, app: Path) -> None:
    out = tmp_path / "tables" / "clinic-comparison"  # below --data-dir, which the app may read
    words = ("--modes", "federated,centralized,local", "--clients", 2, "--out", out, "--data-dir", tmp_path / "tables")
    done("compare", ".", *words, "--run-config", 'csv="site-0.csv"', "--run-config", FEW, folder=app)
    runs = sorted((out / "runs").iterdir())
    results = {one.kind: one for one in map(RunResult.load, runs)}
    models = {RunResult.load(run).kind: run / "model.safetensors" for run in runs}
    assert {kind: one.status for kind, one in results.items()} == dict.fromkeys(results, "finished")
    assert results.keys() == {"federated", "centralized", "local"}
    trees = [ModelState.open(models[kind]).sha256() for kind in ("federated", "centralized")]
    assert trees[0] == trees[1]
    assert len({one.initial_sha256 for one in results.values()}) == 1
    points = [[point.metrics for point in results[kind].curve] for kind in ("federated", "centralized")]
    assert points[0] == points[1]
    assert len({one.samples for one in results.values()}) == 1
    assert "auc/exact" in results["local"].metrics
    assert results["federated"].bytes_up["client-1"] > 0
