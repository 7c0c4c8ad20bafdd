"""Boosted trees of three classes, as typed: sites leave and come back, and the trees stay those of the pooled rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from support.boosting import xgboost_parameters
from support.commands import forked
from support.deployment import LIVENESS_SECONDS, PATIENCE, Deployment
from support.later import Later

from fedcore.comparison.local_federation import FEDCORE
from fedcore.data import TableSchema, table_data
from fedcore.state import ModelState
from fedcore.trees import Ensemble

xgboost = Later("xgboost")
SITES, TREES, MORE = 3, 6, 3
IMPATIENT = f"min-clients={SITES} max-attempts=1 join-seconds=5 liveness-seconds={LIVENESS_SECONDS}"
PATIENT = f"min-clients={SITES} join-seconds={PATIENCE} liveness-seconds={LIVENESS_SECONDS}"


def trees_of(path: Path) -> Ensemble:
    state = ModelState.open(path)
    return Ensemble.from_arrays({name: state[name] for name in state})


@pytest.fixture
def tables(tmp_path: Path) -> list[Path]:
    """A third of the rows for each site, and an app that was written from those of the first."""
    wine = load_wine(as_frame=True)
    table = wine.frame.assign(target=[f"class {one}" for one in wine.target])
    paths = [tmp_path / f"site-{site}.csv" for site in range(SITES)]
    for site, path in enumerate(paths):
        table.iloc[site::SITES].to_csv(path, index=False)
    made = forked("new", "wine", "--csv", paths[0].name, "--target", "target", "--model", "trees", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    return paths


@pytest.fixture
def sites(tmp_path: Path, tables: list[Path]) -> Iterator[Deployment]:
    with Deployment.open(tmp_path / "sites", clients=SITES) as deployment:
        deployment.app = tmp_path / "wine"
        deployment.start_server()
        for name in deployment.federation.client_names():
            start(deployment, name, tables)
        yield deployment


def start(sites: Deployment, name: str, tables: list[Path]) -> None:
    """A client with its table, until it is connected."""
    after, site = len(sites.log(name)), [*sites.federation.client_names()].index(name)
    sites.start_client(name, "--node-config", f'csv="{tables[site]}"')
    sites.wait_for_log(name, "connected", after=after)


def run(sites: Deployment, name: str, out: Path, rounds: int, settings: str, *options: str | Path) -> None:
    config = f"num-server-rounds={rounds} early-stopping-rounds=0 test-every=0"
    words = ("--operator", sites.federation.operator, "--run-config", config, "--set", settings, "--out", out)
    sites.start_process(name, [*FEDCORE, "run", sites.app, *words, *options])


def test_a_run_that_sites_left_and_a_model_that_was_continued_are_the_pooled_trees(
    tmp_path: Path, sites: Deployment, tables: list[Path]
) -> None:
    half, whole = tmp_path / "half.safetensors", tmp_path / "all.safetensors"
    run(sites, "first", half, TREES, IMPATIENT)
    sites.wait_for_log("first", f"tree   2 of {TREES}")
    sites.stop("client-3")
    assert sites.process("first").wait(PATIENCE) != 0
    start(sites, "client-3", tables)
    resumed = forked("run", "--resume", "last", "--force", "--operator", sites.federation.operator, "--out", half)
    assert resumed.returncode == 0, resumed.stderr
    run(sites, "further", whole, TREES + MORE, PATIENT, "--initial-model", half)
    sites.wait_for_log("further", f"tree   1 of {TREES + MORE}")
    sites.kill("client-2")
    start(sites, "client-2", tables)
    assert sites.process("further").wait(PATIENCE) == 0, sites.log("further")
    first, model = trees_of(half), trees_of(whole)
    assert (first.rounds, model.rounds) == (TREES, TREES + MORE)
    for earlier, tree in zip(first.trees, model.trees, strict=False):
        np.testing.assert_array_equal(earlier.feature, tree.feature)
        np.testing.assert_array_equal(earlier.weight, tree.weight)
    schema = TableSchema.load(sites.app / "schema.toml").coded()
    parts = [table_data(schema, {}, {"csv": str(path)}, app=sites.app)[0] for path in tables]
    x = np.concatenate([part.x for part in parts]).astype(np.float32)
    y = np.concatenate([part.y for part in parts])
    bins = (model.cuts.bins_of(x) - model.cuts.starts[:-1]).astype(np.float32)
    matrix = xgboost.QuantileDMatrix(bins, y, max_bin=256)
    pooled = xgboost.train(xgboost_parameters(model.settings, None, 256), matrix, TREES + MORE)
    np.testing.assert_allclose(model.predict(x), pooled.predict(xgboost.DMatrix(bins)), rtol=1e-4, atol=1e-5)
