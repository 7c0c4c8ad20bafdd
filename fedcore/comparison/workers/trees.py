"""Apps of boosted trees in a comparison: their rows and models, and how trees grow in one place and at each site alone.

All grow by the code of the federation (`fedcore.flower.trees`). In one place the sums over the rows are those of the
federation, so its trees are the same; a site alone has bins of its own rows as well.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fedcore.comparison.run import PlannedRun, worker_name
from fedcore.comparison.workers.problem import Problem, TreesProblem
from fedcore.comparison.workers.processes import ReportSink
from fedcore.comparison.workers.training import RoundDone, WorkerReady, snapshot, train_alone, wait_for_end
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
