"""Boosted trees on a federation of real processes: the model is XGBoost's on the pooled rows with the same bins."""

from __future__ import annotations

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
