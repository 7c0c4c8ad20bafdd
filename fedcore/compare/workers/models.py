"""The model that a run begins with, as the app's ServerApp makes it, and what the models of its rounds give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from fedcore.compare.results import SiteResult
from fedcore.compare.run import INITIAL_FILE, PlannedRun, worker_name
from fedcore.compare.workers.problem import Problem
from fedcore.compare.workers.processes import ReportSink, WorkerReport, Workers
from fedcore.config import EngineConfig
from fedcore.errors import AppError, BudgetSpent
from fedcore.exchange import ExchangeReply, ExchangeRequest
from fedcore.flower.serverside import run_server_app
from fedcore.state import ModelState
from fedcore.state.files import sha256_file
from fedcore.training.engines import World, make_engine
from fedcore.training.loop import evaluate

START_SECONDS: Final = 600.0
"""How long the app may take to import and to make a model, or to read its data."""
SILENCE_SECONDS: Final = 1800.0
"""How long the evaluation of one model may take."""

Models: TypeAlias = Mapping[int, Path]
"""Site -> the file of the model that it is to be evaluated on; a site that has none is left out."""


# --- the first model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ending:
    """An `ExchangeBackend` that ends the run when the first model is sent."""

    sites: int

    def nodes(self) -> list[int]:
        return list(range(1, self.sites + 1))

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        raise BudgetSpent("the first model is known")


def initial_state(run: PlannedRun) -> ModelState:
    """Run the ServerApp in this process up to the first model that it sends; raises AppError where it sends none."""
    outcome = run_server_app(
        run.app, backend=_Ending(run.sites), run="initial model", run_config=dict(run.config), aggregation="plain"
    )
    if outcome.state is None:
        raise AppError(f"the ServerApp of {run.app.name} sends no model with its first message")
    return outcome.state


def save_initial(run: PlannedRun, workers: Workers) -> str:
    """Write the initial model into the folder of the run, from a process of its own; returns the file's SHA-256.

    Raises RunFailed with what the app raised.
    """
    workers.call("initial", _save_initial, run, silence=START_SECONDS)
    return sha256_file(run.folder / INITIAL_FILE)


def _save_initial(report: ReportSink, run: PlannedRun) -> None:
    del report
    initial_state(run).save(run.folder / INITIAL_FILE)


# --- the models of rounds --------------------------------------------------------------------------------------------


class _SiteEvaluation(NamedTuple):
    site: int
    examples: int
    weight: int
    loss: float
    accuracy: float


class Evaluated(WorkerReport):
    """What one round's models gave, each on its site; the means are weighted as the app weighs test results."""

    round: int
    found: tuple[_SiteEvaluation, ...]

    def mean(self, name: str) -> float:
        """Of "loss" or "accuracy"."""
        total: float = sum(one.weight * getattr(one, name) for one in self.found)
        return total / sum(one.weight for one in self.found)

    @property
    def sites(self) -> tuple[SiteResult, ...]:
        """Site by site."""
        return tuple(
            SiteResult(site=worker_name(one.site), examples=one.examples, loss=one.loss, accuracy=one.accuracy)
            for one in self.found
        )


def everywhere(run: PlannedRun, model: Path) -> Models:
    """One model for all sites."""
    return dict.fromkeys(range(run.sites), model)


def evaluate_rounds(run: PlannedRun, workers: Workers, rounds: Mapping[int, Models]) -> dict[int, Evaluated]:
    """Evaluate the models of some rounds on the test parts of their sites, in a process of its own.

    Raises RunFailed where the app's own code fails, or where it is not a `supervised_app`.
    """
    reports = workers.call("evaluator", _evaluate, run, rounds, silence=SILENCE_SECONDS)
    return {report.round: report for report in reports if isinstance(report, Evaluated)}


def _evaluate(report: ReportSink, run: PlannedRun, rounds: Mapping[int, Models]) -> None:
    problem = Problem.of(run)
    engine = make_engine(problem.recipe(), EngineConfig(), World(device=World.current().device))
    parts = {site: problem.test(site) for models in rounds.values() for site in models}
    for number, models in rounds.items():
        loaded, found = None, []
        for site, model in models.items():
            if model != loaded:
                state = ModelState.open(model)
                engine.load(state, only=list(state))
                loaded = model
            result = evaluate(engine, parts[site])
            weight = getattr(result, problem.app.weigh)
            found.append(_SiteEvaluation(site, result.examples, weight, result.loss, result.accuracy))
        report(Evaluated(round=number, found=tuple(found)))
