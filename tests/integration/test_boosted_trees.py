"""Boosted trees on a federation of real processes: the model is XGBoost's on the pooled rows with the same bins."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.commands import forked
from support.deployment import Deployment
from support.later import Later

from fedcore.state import ModelState
from fedcore.trees import Ensemble

APP = Path(__file__).parents[2] / "examples" / "trees"
sys.path.insert(0, str(APP))
from trees_app.task import COLUMNS, table  # noqa: E402

xgboost = Later("xgboost")
SITES, TREES = 3, 4


def test_a_run_ends_with_the_trees_of_the_pooled_rows(tmp_path: Path) -> None:
    with Deployment.open(tmp_path / "sites", clients=SITES) as deployment:
        deployment.app = APP
        deployment.start()
        out = tmp_path / "model.safetensors"
        words = ("--run-config", f"num-server-rounds={TREES}")
        done = forked("run", APP, "--operator", deployment.federation.operator, "--out", out, *words)
    assert done.returncode == 0, done.stderr
    exported = tmp_path / "model.json"
    done = forked("export", out, "--app", APP, "--to", "xgboost", "--out", exported)
    assert done.returncode == 0, done.stderr
    booster, rows = xgboost.Booster(model_file=str(exported)), table()
    state = ModelState.open(out)
    ours = Ensemble.from_arrays({name: state[name] for name in state})
    bins = (ours.cuts.bins_of(rows.train.x) - ours.cuts.starts[:-1]).astype(np.float32)
    settings = {
        "tree_method": "hist", "objective": "binary:logistic", "max_depth": 3, "max_bin": 256,
        "base_score": ours.base_score, "nthread": 1,
    }  # fmt: skip
    pooled = xgboost.train(settings, xgboost.QuantileDMatrix(bins, rows.train.y, max_bin=256), TREES)
    theirs = booster.predict(xgboost.DMatrix(rows.train.x, feature_names=list(COLUMNS)))
    assert theirs == pytest.approx(pooled.predict(xgboost.DMatrix(bins)), abs=1e-6)
