"""Boosted trees in a comparison: in one place the trees of the federation, at each site alone its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.later import Later
from support.raising import raises

from fedcore.comparison.app_probe import AppFacts, Unreadable, report_facts
from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import CompareJob, plan
from fedcore.comparison.run import INITIAL_FILE, PlannedRun
from fedcore.comparison.workers.models import first_of
from fedcore.comparison.workers.problem import Problem, TreesProblem
from fedcore.comparison.workers.processes import WorkerReport
from fedcore.comparison.workers.server_app import train_centralized
from fedcore.comparison.workers.training import RoundDone, WorkerReady, snapshot
from fedcore.comparison.workers.trees import save_rounds, train_site, train_xgboost
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.simulation import Simulation
from fedcore.simulation.devices.network import Network
from fedcore.state import ModelState
from fedcore.training.loop import evaluate
from fedcore.trees import Ensemble

xgboost = Later("xgboost")
APP = Path(__file__).parents[3] / "examples" / "trees"
SITES, TREES = 2, 2


def planned(mode: str, folder: Path, **options: Any) -> PlannedRun:
    job = CompareJob(
        app=FlowerApp.load(APP),
        modes=parse_modes(mode),
        sites=SITES,
        out=folder,
        run_config={"num-server-rounds": TREES, "max-depth": 2, "test-every": 0},
        **options,
    )
    (run,) = plan(job)
    run.folder.mkdir(parents=True)
    return run


def model(path: Path) -> Ensemble:
    state = ModelState.open(path)
    return Ensemble.from_arrays({name: state[name] for name in state})


def grown(worker: Any, run: PlannedRun, *arguments: Any) -> list[WorkerReport]:
    reports: list[WorkerReport] = []
    first_of(run).model.save(run.folder / INITIAL_FILE)
    worker(reports.append, run, *arguments)
    return reports


def test_in_one_place_grow_the_trees_of_the_federation(tmp_path: Path) -> None:
    run = planned("centralized", tmp_path)
    ready, *rounds = grown(train_centralized, run)
    assert isinstance(ready, WorkerReady)
    assert [(one.round, one.examples) for one in rounds if isinstance(one, RoundDone)] == [(1, 455), (2, 455)]
    assert ready.counts == (228, 227)
    federation = Simulation(app=run.app, clients=SITES, run_config=dict(run.config), settings=run.app.settings).run()
    assert federation.state is not None
    assert ModelState.open(snapshot(run.folder, TREES)).sha256() == federation.state.sha256()
    federation.state.save(tmp_path / "last.safetensors")
    of_rounds = save_rounds(tmp_path / "last.safetensors", tmp_path)
    assert list(of_rounds) == [1, 2]
    assert ModelState.open(of_rounds[1]).sha256() == ModelState.open(snapshot(run.folder, 1)).sha256()


def test_a_site_alone_has_its_own_rows_and_bins(tmp_path: Path) -> None:
    run = planned("local", tmp_path)
    ready, *rounds = grown(train_site, run, 1)
    assert (isinstance(ready, WorkerReady) and ready.counts, len(rounds)) == ((227,), TREES)
    alone, first = model(snapshot(run.folder / "client-2", TREES)), model(run.folder / INITIAL_FILE)
    assert (len(first.trees), len(alone.trees)) == (0, TREES)
    problem = Problem.of(run)
    assert isinstance(problem, TreesProblem)
    own = np.asarray(problem.table(range(1, 2))[0].y)
    assert alone.base_score == pytest.approx(own.mean())
    assert alone.base_score != first.base_score


def test_a_site_that_stops_early_keeps_its_best_model_for_the_rounds_to_come(tmp_path: Path) -> None:
    run = planned("local", tmp_path)
    config = {**run.config, "num-server-rounds": 6, "learning-rate": 1.0, "early-stopping-rounds": 1, "test-every": 1}
    _, *rounds = grown(train_site, replace(run, config=config), 0)
    examples = [one.examples for one in rounds if isinstance(one, RoundDone)]
    stop = examples.index(0)
    assert (len(examples), examples[:stop]) == (6, [228] * stop)
    last = model(snapshot(run.folder / "client-1", 6))
    assert last.best is not None
    assert (len(last.trees), last.best[0]) == (stop - 1, stop - 2)
    assert len(model(snapshot(run.folder / "client-1", stop)).trees) == stop - 1


def test_xgboost_grows_on_all_rows_with_the_settings_of_the_app(tmp_path: Path) -> None:
    run = planned("xgboost", tmp_path)
    ready, *rounds = grown(train_xgboost, run, 0, 0, None)
    assert isinstance(ready, WorkerReady)
    assert (ready.counts, [one.examples for one in rounds if isinstance(one, RoundDone)]) == ((228, 227), [455, 455])
    problem = Problem.of(run)
    assert isinstance(problem, TreesProblem)
    train, test = problem.table(range(SITES))
    names = ("objective", "max_depth", "learning_rate", "reg_lambda", "gamma", "min_child_weight")
    settings = {name: getattr(problem.settings, name) for name in names}
    rows, bins = xgboost.DMatrix(train.x, train.y), int(run.config["bins"])
    theirs = xgboost.train({**settings, "tree_method": "hist", "max_bin": bins}, rows, TREES)
    for number in range(1, TREES + 1):
        chances = theirs.predict(xgboost.DMatrix(test.x), iteration_range=(0, number))
        np.testing.assert_allclose(model(snapshot(run.folder, number)).predict(test.x), chances, rtol=1e-5)


def test_xgboost_that_stops_early_keeps_its_best_model(tmp_path: Path) -> None:
    run = planned("xgboost", tmp_path)
    config = {**run.config, "num-server-rounds": 30, "learning-rate": 1.0, "early-stopping-rounds": 2, "test-every": 1}
    _, *rounds = grown(train_xgboost, replace(run, config=config), 0, 0, None)
    examples = [one.examples for one in rounds if isinstance(one, RoundDone)]
    stop = examples.index(0)
    assert (len(examples), examples[:stop]) == (30, [455] * stop)
    assert len(model(snapshot(run.folder, 30)).trees) == stop - 2


def test_xgboost_is_for_trees_alone() -> None:
    (mode,) = parse_modes("xgboost")
    assert AppFacts(refusal="", trees=True).allows(mode)
    assert not AppFacts(refusal="").allows(mode)
    assert not AppFacts(refusal="its own loop").allows(mode)


def test_a_model_is_tested_as_those_of_networks_are(tmp_path: Path) -> None:
    run = planned("local", tmp_path)
    grown(train_site, run, 0)
    problem = Problem.of(run)
    path = snapshot(run.folder / "client-1", TREES)
    found = evaluate(problem.engine_with(ModelState.open(path)), problem.test(0), metrics=problem.metrics)
    rows = problem.test(0)
    chances = model(path).predict(np.asarray(rows.x))  # type: ignore[union-attr]
    right = np.mean((chances > 0.5) == np.asarray(rows.y))  # type: ignore[union-attr]
    values = {metric.name: metric.value(np_sums(found.sums[metric.name])) for metric in problem.metrics}
    assert values["accuracy"] == pytest.approx(right)


def np_sums(sums: tuple[float, ...]) -> Any:
    import torch

    return torch.tensor(sums, dtype=torch.float64)


def facts_of(run: PlannedRun) -> WorkerReport:
    reports: list[WorkerReport] = []
    report_facts(reports.append, run)
    return WorkerReport.decoded(reports[0].encoded())


def test_modes_that_take_steps_are_refused_for_trees(tmp_path: Path) -> None:
    run = planned("federated", tmp_path)
    facts = facts_of(run)
    assert isinstance(facts, AppFacts)
    assert (facts.refusal, facts.trees, sum(site.training for site in facts.split)) == ("", True, 455)
    assert {"auc", "loss", "auc/exact"} <= facts.metrics.keys()
    facts.check(parse_modes("centralized,local,federated,federated-plain"))
    with raises(ConfigurationError, check="modes-refused", match="allreduce.*ps-ssp.*federated-async"):
        facts.check(parse_modes("allreduce,ps-ssp,federated-async"))
    with raises(ConfigurationError, check="global-batch"):
        train_centralized(lambda report: None, planned("centralized[ranks=2]", tmp_path / "ranks"))
    assert isinstance(facts_of(replace(run, network=Network.parse("lan"))), Unreadable)
