"""Boosted trees on a federation of real processes: the model is XGBoost's on the pooled rows with the same bins."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.commands import forked
from support.deployment import Deployment
from support.later import Later

from fedcore.federation import Policy
from fedcore.state import ModelState
from fedcore.trees import Ensemble

APP = Path(__file__).parents[2] / "examples" / "trees"
sys.path.insert(0, str(APP))
from trees_app.task import COLUMNS, table  # noqa: E402

xgboost = Later("xgboost")
SITES, TREES = 3, 4


def test_a_run_ends_with_the_trees_of_the_pooled_rows(tmp_path: Path) -> None:
    policy = replace(Policy.own(SITES), max_tree_depth=3, min_rows_in_node=4)
    with Deployment.open(tmp_path / "sites", clients=SITES, policy=policy) as deployment:
        deployment.app = APP
        deployment.start()
        out = tmp_path / "model.safetensors"
        run = "run", APP, "--operator", deployment.federation.operator, "--out", out, "--run-config"
        refused = forked(*run, "num-server-rounds=1 max-depth=4")
        done = forked(*run, f"num-server-rounds={TREES} test-every=1 early-stopping-rounds={TREES}")
    assert refused.returncode != 0
    assert "tree-too-deep" in refused.stderr
    assert done.returncode == 0, done.stderr
    exported = tmp_path / "model.json"
    done = forked("export", out, "--app", APP, "--to", "xgboost", "--out", exported)
    assert done.returncode == 0, done.stderr
    booster, rows = xgboost.Booster(model_file=str(exported)), table()
    state = ModelState.open(out)
    ours = Ensemble.from_arrays({name: state[name] for name in state})
    assert ours.best is not None
    assert (booster.best_iteration, booster.num_boosted_rounds()) == (ours.best[0], ours.best[0] + 1)
    bins = (ours.cuts.bins_of(rows.train.x) - ours.cuts.starts[:-1]).astype(np.float32)
    settings = {
        "tree_method": "hist", "objective": "binary:logistic", "max_depth": 3, "max_bin": 256,
        "base_score": ours.base_score, "nthread": 1,
    }  # fmt: skip
    pooled = xgboost.train(settings, xgboost.QuantileDMatrix(bins, rows.train.y, max_bin=256), ours.rounds)
    theirs = booster.predict(xgboost.DMatrix(rows.train.x, feature_names=list(COLUMNS)))
    assert theirs == pytest.approx(pooled.predict(xgboost.DMatrix(bins)), abs=1e-6)


def test_noise_for_rows_is_counted_at_each_site_and_ends_with_its_budget(tmp_path: Path) -> None:
    """A first run within the owners' limit of a row, and a second one beyond it."""
    policy = replace(Policy.own(SITES, allow_plain=False), max_row_epsilon=9.0, delta=1e-6)
    config = "num-server-rounds=2 max-depth=2 bins=8 min-child-weight=5.0 epsilon=8.0"
    with Deployment.open(tmp_path / "sites", clients=SITES, policy=policy) as deployment:
        deployment.app = APP
        deployment.start()
        out = tmp_path / "model.safetensors"
        run = "run", APP, "--operator", deployment.federation.operator, "--out", out, "--run-config"
        without = forked(*run, "num-server-rounds=1")
        done = forked(*run, config)
        beyond = forked(*run, config, "--force")
        name = next(iter(deployment.federation.client_names()))
        audited = json.loads(forked("client", "audit", "--kit", deployment.kit(name), "--json").stdout)
    assert done.returncode == 0, done.stderr
    assert "privacy-required" in without.stderr
    assert "privacy-budget" in beyond.stderr
    rows = audited["spending"]["rows"]
    assert 7.5 < rows["epsilon"] <= 9.0 == rows["allowed"]
    assert audited["spending"]["epsilon"] is None
    state = ModelState.open(out)
    assert Ensemble.from_arrays({name: state[name] for name in state}).rounds == 2
