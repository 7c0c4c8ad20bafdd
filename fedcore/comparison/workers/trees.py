"""Apps of boosted trees in a comparison: their rows and models, and how trees grow in one place and at each site alone.

All grow by the code of the federation (`fedcore.flower.trees`). In one place the sums over the rows are those of the
federation, so its trees are the same; a site alone has bins of its own rows as well. XGBoost is there for comparison.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedcore.comparison.run import INITIAL_FILE, PlannedRun, worker_name
from fedcore.comparison.workers.problem import Problem, TreesProblem
from fedcore.comparison.workers.processes import ReportSink
from fedcore.comparison.workers.training import RoundDone, WorkerReady, snapshot, train_alone, wait_for_end
from fedcore.errors import ConfigurationError
from fedcore.flower.trees.one_place import grown_in_one_place
from fedcore.state import ModelState
from fedcore.trees import Ensemble


def train_site(report: ReportSink, run: PlannedRun, site: int) -> None:
    """A worker of mode `local`: of trees, or of a model that is trained by steps."""
    problem = Problem.of(run)
    if isinstance(problem, TreesProblem):
        grow_alone(report, run, problem, site)
    else:
        train_alone(report, run, site)


def grow_alone(report: ReportSink, run: PlannedRun, problem: TreesProblem, site: int) -> None:
    """One site on its own rows."""
    folder = run.folder / worker_name(site)
    folder.mkdir(exist_ok=True)
    _grow(report, run, problem, range(site, site + 1), folder, run.lost_after(site))


def grow_pooled(report: ReportSink, run: PlannedRun, problem: TreesProblem) -> None:
    """The rows of all sites in one place."""
    lost_after = run.kill.round if run.kill is not None else 0
    _grow(report, run, problem, range(run.sites), run.folder, lost_after)


def train_xgboost(report: ReportSink, run: PlannedRun, rank: int, port: int, listening: object) -> None:
    """XGBoost on the rows of all sites, with the settings of the app; its trees are kept in the app's own form.

    Raises ConfigurationError for an app of anything else than trees.
    """
    import xgboost

    del rank, port, listening
    problem = Problem.of(run)
    if not isinstance(problem, TreesProblem):
        raise ConfigurationError("the mode xgboost is for apps of boosted trees alone", check="no-trees")
    counts = tuple(len(problem.training(site)) for site in range(run.sites))  # type: ignore[arg-type]
    state = ModelState.open(run.folder / INITIAL_FILE)
    first = Ensemble.from_arrays({name: state[name] for name in state})
    types = ["c" if levels else "float" for levels in first.levels]
    train, test = (
        xgboost.DMatrix(part.x, part.y.ravel(), feature_types=types, enable_categorical=True)
        for part in problem.table(range(run.sites))
    )
    booster = xgboost.Booster(_xgboost_settings(problem), [train, test])
    report(WorkerReady(counts=counts, parameters=sum(spec.size for spec in state.layout.specs)))
    early, best, model = int(problem.config.get("early-stopping-rounds", 0)), (math.inf, 0), first
    lost_after = run.kill.round if run.kill is not None else 0
    for number in range(1, problem.rounds + 1):
        started, grows = time.perf_counter(), not early or number - 1 - best[1] < early
        if grows:
            booster.update(train, number - 1)
            model = first.with_xgboost(json.loads(booster.save_raw("json")))
            best = min(best, (float(booster.eval(test).rpartition(":")[2]), number)) if early else best
        if early and (not grows or number == problem.rounds):
            model = replace(model, trees=model.trees[: best[1] * first.settings.groups])
        ModelState.from_arrays(model.to_arrays()).save(snapshot(run.folder, number))
        examples, seconds = (sum(counts) if grows else 0), time.perf_counter() - started
        report(RoundDone(round=number, examples=examples, steps=0, loss=None, seconds=seconds))
        wait_for_end(number, lost_after)


def _xgboost_settings(problem: TreesProblem) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(problem.settings).items() if name != "num_class" or value}
    return {**settings, "tree_method": "hist", "max_bin": int(problem.config.get("bins", 32))}


def _grow(
    report: ReportSink, run: PlannedRun, problem: TreesProblem, sites: range, folder: Path, lost_after: int
) -> None:
    parts = problem.table(sites)
    counts = tuple(len(problem.training(site)) for site in sites)  # type: ignore[arg-type]
    started, last = time.perf_counter(), 0

    def take(number: int, model: ModelState) -> None:
        nonlocal started, last
        if number:
            model.save(snapshot(folder, number))
            seconds = time.perf_counter() - started
            report(RoundDone(round=number, examples=len(parts[0]), steps=0, loss=None, seconds=seconds))
        else:
            report(WorkerReady(counts=counts, parameters=sum(spec.size for spec in model.layout.specs)))
        wait_for_end(number, lost_after)
        started, last = time.perf_counter(), number

    final = grown_in_one_place(problem.app, dict(run.config), parts, take)
    final.save(snapshot(folder, last))
    # Sites stop early after different rounds, and a point of the curve is the mean over the models of all.
    for number in range(last + 1, problem.rounds + 1):
        final.save(snapshot(folder, number))
        report(RoundDone(round=number, examples=0, steps=0, loss=None, seconds=0.0))
        wait_for_end(number, lost_after)


def save_rounds(model: Path, folder: Path) -> dict[int, Path]:
    """The models of all rounds of a run, as snapshots that follow from its last one, which has all trees.

    Raises ConfigurationError if the model is no boosted trees.
    """
    state = ModelState.open(model)
    last = Ensemble.from_arrays({name: state[name] for name in state})
    paths = {}
    for number in range(1, last.rounds + 1):
        first = replace(last, trees=last.trees[: number * last.settings.groups])
        paths[number] = snapshot(folder, number)
        ModelState.from_arrays(first.to_arrays()).save(paths[number])
    return paths
