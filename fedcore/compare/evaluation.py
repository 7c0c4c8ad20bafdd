"""The models of a run on the test part of every site: after the training, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from fedcore.compare.problem import Problem
from fedcore.compare.results import RunResult, SiteResult
from fedcore.compare.run import ModeRun, worker_name
from fedcore.compare.workers import ReportSink, Workers
from fedcore.config import EngineConfig
from fedcore.events import EventSink, ExchangeDone
from fedcore.state import ModelState
from fedcore.training.engines import World, make_engine
from fedcore.training.loop import evaluate

SILENCE_SECONDS: Final = 1800.0
"""How long the evaluation of one model may take."""

Models: TypeAlias = Mapping[int, Path]
"""Site -> the file of the model that it is to be evaluated on; a site that has none is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What one round's models gave. loss, accuracy: mean over the sites, weighted as the app weighs test results."""

    loss: float
    accuracy: float
    sites: tuple[SiteResult, ...]


def everywhere(run: ModeRun, model: Path) -> Models:
    """One model for all sites."""
    return dict.fromkeys(range(run.sites), model)


def evaluate_rounds(run: ModeRun, workers: Workers, rounds: Mapping[int, Models]) -> dict[int, Evaluated]:
    """Evaluate the models of some rounds, which have at least one each.

    Raises RunFailed where the app's own code fails, or where it is not a `supervised_app`.
    """
    reports = workers.call("evaluator", _evaluate, run, rounds, silence=SILENCE_SECONDS)
    return {report.data["round"]: _evaluated(report.data["sites"]) for report in reports}


def emit_evaluation(result: RunResult, emit: EventSink) -> None:
    """Tell the events of a run what its last model gave."""
    found = {"eval_loss": result.loss, "eval_acc": result.accuracy}
    emit(
        ExchangeDone(
            exchange=len(result.curve),
            server_round=result.curve[-1].round,
            message_type="evaluate",
            aggregation="none",
            survivors=[site.site for site in result.sites],
            examples=sum(site.examples for site in result.sites),
            metrics={name: value for name, value in found.items() if value is not None},
            seconds=0.0,
        )
    )


def _evaluate(report: ReportSink, run: ModeRun, rounds: Mapping[int, Models]) -> None:
    problem = Problem.load(run.app, config=run.config, sites=run.sites)
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
            found.append([site, result.examples, weight, result.loss, result.accuracy])
        report("evaluated", {"round": number, "sites": found})


def _evaluated(found: list[list[Any]]) -> Evaluated:
    total = sum(weight for _, _, weight, _, _ in found)
    return Evaluated(
        loss=sum(weight * loss for _, _, weight, loss, _ in found) / total,
        accuracy=sum(weight * accuracy for _, _, weight, _, accuracy in found) / total,
        sites=tuple(
            SiteResult(site=worker_name(site), examples=examples, loss=loss, accuracy=accuracy)
            for site, examples, _, loss, accuracy in found
        ),
    )
