"""The model that a run begins with, as the app's ServerApp makes it, and what the models of its rounds give."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from fedcore.comparison.judging import LOSS
from fedcore.comparison.results import SiteResult
from fedcore.comparison.run import INITIAL_FILE, PlannedRun, worker_name
from fedcore.comparison.workers.bootstrap import Drawn, DrawnMetrics, Weights, added, figures, weights_of
from fedcore.comparison.workers.pooled import Recorder, SeenExamples, of_pairs
from fedcore.comparison.workers.problem import Problem
from fedcore.comparison.workers.processes import ReportSink, WorkerReport, Workers
from fedcore.errors import AppError, BudgetSpent, ConfigurationError, UsageError
from fedcore.flower.app import AppBundle
from fedcore.flower.apps.progress_protocol import EvaluationProgress
from fedcore.flower.grid.plain_request import Content, PlainRequest
from fedcore.flower.records import state_from_arrays
from fedcore.flower.serverside import run_server_app
from fedcore.flower.trees.question import GROW
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.run.requirements import waiting_for
from fedcore.run.settings import JobSettings
from fedcore.simulation.plain import PlainSimulation
from fedcore.simulation.workers.executor import InlineExecutor
from fedcore.state import ModelState
from fedcore.state.files import sha256_file
from fedcore.training.engines import Engine
from fedcore.training.engines.batches import TrainingData
from fedcore.training.loop import Evaluation, evaluate
from fedcore.training.metrics import Metric
from fedcore.wire.events import FiguresFound

START_SECONDS: Final = 600.0
"""How long the app may take to import and to make a model, or to read its data."""
SILENCE_SECONDS: Final = 1800.0
"""How long the evaluation of one model may take."""

_GROWS: Final = f"query.{GROW}"
"""The first question that boosted trees come with."""

Models: TypeAlias = Mapping[int, Path]
"""Site -> the file of the model that it is to be evaluated on; a site that has none is left out."""


# --- the first model -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _FirstModelBackend:
    """An `ExchangeBackend` that ends the run when the first model is sent; questions before that are answered here."""

    run: PlannedRun
    sent: Content | None = None
    _questions: PlainSimulation | None = None

    def nodes(self) -> list[int]:
        return list(range(1, self.run.sites + 1))

    def waits(self, nodes: int, setting: str, present: int) -> None:
        raise ConfigurationError(waiting_for(nodes, setting, present, self.run.sites, ()))

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        raise UsageError("the first model is looked for in plain mode")

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        kinds = {message.message_type for message in request.messages}
        if _GROWS in kinds or any(kind.partition(".")[0] in ("train", "evaluate") for kind in kinds):
            self.sent = request.contents[0]
            raise BudgetSpent("the first model is known")
        if self._questions is None:
            self._questions = self._simulation()
        return self._questions.ask(request)

    def report_figures(self, figures: FiguresFound) -> None:
        """There is nothing yet."""

    def _simulation(self) -> PlainSimulation:
        app, sites = self.run.app, self.run.sites
        return PlainSimulation(
            run="initial model",
            executor=InlineExecutor(app=app, clients=sites),
            clients=self.nodes(),
            settings=JobSettings(aggregation="plain"),
            run_config=self.run.config,
            app_sha256=AppBundle.from_folder(app.folder).sha256,
        )


@dataclass(frozen=True, slots=True)
class First:
    """The first model of a run."""

    model: ModelState
    """The model that the run begins with."""
    sent: ModelState
    """Everything that its clients get: the model, and what a strategy sends in addition."""


def first_of(run: PlannedRun) -> First:
    """Run the ServerApp in this process up to the first model that it sends; raises AppError if it sends none."""
    backend = _FirstModelBackend(run)
    outcome = run_server_app(
        run.app,
        backend=backend,
        run="initial model",
        run_config=dict(run.config),
        aggregation="plain",
        most_nodes=lambda: run.sites,
    )
    if outcome.state is None or backend.sent is None:
        raise AppError(f"the ServerApp of {run.app.name} sends no model before it needs an answer")
    records = list(backend.sent.records.array_records.values())
    return First(outcome.state, state_from_arrays(records[0]) if len(records) == 1 else outcome.state)


def save_initial(run: PlannedRun, workers: Workers) -> str:
    """Write the initial model into the folder of the run, from a process of its own; returns the file's SHA-256.

    Raises RunFailed with what the app raised.
    """
    workers.call("initial", _save_initial, run, silence=START_SECONDS)
    return sha256_file(run.folder / INITIAL_FILE)


def _save_initial(report: ReportSink, run: PlannedRun) -> None:
    del report
    first_of(run).model.save(run.folder / INITIAL_FILE)


# --- the models of rounds --------------------------------------------------------------------------------------------


class _SiteEvaluation(NamedTuple):
    site: int
    examples: int
    metrics: dict[str, float]
    everywhere: dict[str, float]


class Evaluated(WorkerReport):
    """What one round's models gave: on the test parts of all sites together, and on each.

    Sums of metrics are added over the sites; the loss is weighted as the app weighs test results. Where each site has a
    model of its own, `metrics` are means over those models, each on the test parts of all sites.

    bootstrap: the metrics on draws of the test examples, of the last round alone.
    """

    round: int
    metrics: dict[str, float]
    evaluations: tuple[_SiteEvaluation, ...] = ()
    bootstrap: dict[str, tuple[float, ...]] = Field(default_factory=dict)

    @property
    def sites(self) -> tuple[SiteResult, ...]:
        """Site by site."""
        return tuple(
            SiteResult(
                site=worker_name(one.site), examples=one.examples, metrics=one.metrics, everywhere=one.everywhere
            )
            for one in self.evaluations
        )


def everywhere(run: PlannedRun, model: Path) -> Models:
    """One model for all sites."""
    return dict.fromkeys(range(run.sites), model)


def evaluate_rounds(
    run: PlannedRun, workers: Workers, rounds: Mapping[int, Models], tested: Mapping[int, Sequence[EvaluationProgress]]
) -> dict[int, Evaluated]:
    """Evaluate the models of some rounds on the test parts of their sites, in a process of its own.

    Raises RunFailed if the app's own code fails, or where its data are not known.

    Args:
        tested: of other rounds, whose models are nowhere, what each site's client found.
    """
    reports = workers.call("evaluator", _evaluate, run, rounds, tested, silence=SILENCE_SECONDS)
    return {report.round: report for report in reports if isinstance(report, Evaluated)}


def _evaluate(
    report: ReportSink,
    run: PlannedRun,
    rounds: Mapping[int, Models],
    tested: Mapping[int, Sequence[EvaluationProgress]],
) -> None:
    problem = Problem.of(run)
    alone = run.mode.in_report.alone
    sites = range(run.sites) if alone else {site for models in rounds.values() for site in models}
    test = _Test(problem, {site: problem.test(site) for site in sites})
    last = max(rounds, default=0)
    for number, models in rounds.items():
        test.draws = number == last
        report(test.each_everywhere(number, models) if alone else test.together(number, models))
    for number, results in tested.items():
        report(Evaluated(round=number, metrics=_together(test.counts(one) for one in results).figures()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Sums over test examples.

    weight: of the loss.
    sums: of each metric.
    drawn: the same in draws of the examples; {} if nobody drew any.
    outputs: what the model gave for each example; of clients' evaluations nothing is known but the sums.
    """

    examples: int = 0
    weight: int = 0
    loss: float = 0.0
    metrics: tuple[Metric, ...] = ()
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    drawn: Drawn = field(default_factory=dict)
    outputs: SeenExamples = field(default_factory=SeenExamples)

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(
            examples=self.examples + other.examples,
            weight=self.weight + other.weight,
            loss=self.loss + other.loss,
            metrics=other.metrics,
            sums={name: self.sums.get(name, 0) + sums for name, sums in other.sums.items()},
        )

    def figures(self) -> dict[str, float]:
        """The metrics, and the mean loss; of two classes with AUC and calibration."""
        values = {metric.name: metric.value(self.sums[metric.name]) for metric in self.metrics}
        return {**values, LOSS: self.loss / max(1, self.weight), **self.outputs.figures(frozenset(self.sums))}

    def of_site(self) -> dict[str, float]:
        """The figures of one site, without those that mean nothing there, as an AUC of one class."""
        figures = self.figures()
        if not math.isfinite(figures[LOSS]):
            return figures
        return {name: value for name, value in figures.items() if not math.isnan(value)}


def _means(drawn: Sequence[Mapping[str, tuple[float, ...]]]) -> dict[str, tuple[float, ...]]:
    """Over models, in each draw."""
    names = set.intersection(*(set(one) for one in drawn)) if drawn else set()
    return {name: tuple(map(fmean, zip(*(one[name] for one in drawn), strict=True))) for name in sorted(names)}


def _together(counts: Iterable[_Counts]) -> _Counts:
    return functools.reduce(operator.add, counts, _Counts())


def _everywhere(parts: Sequence[_Counts]) -> dict[str, float]:
    """Figures of one model on the test parts of all sites."""
    together = _together(parts)
    outputs = SeenExamples.together([part.outputs for part in parts])
    figures = replace(together, outputs=outputs).figures()
    return figures | of_pairs(together.metrics, outputs, [part.of_site() for part in parts])


@dataclass(slots=True)
class _Test:
    """Evaluates models, the test parts of whose sites stay in memory.

    draws: whether metrics are wanted on draws of the examples, too.
    """

    problem: Problem
    parts: Mapping[int, TrainingData]
    draws: bool = False
    _engine: Engine | None = None
    _loaded: Path | None = None
    _weights: dict[int, Weights | None] = field(default_factory=dict)

    def together(self, number: int, models: Models) -> Evaluated:
        """One model for all sites, on the test part of each and on all of them together."""
        each = {site: self.of(model, site) for site, model in models.items()}
        evaluations = [_SiteEvaluation(site, one.examples, one.of_site(), {}) for site, one in each.items()]
        return Evaluated(
            round=number,
            metrics=_everywhere([*each.values()]),
            evaluations=tuple(evaluations),
            bootstrap=self._drawn(each.values()),
        )

    def each_everywhere(self, number: int, models: Models) -> Evaluated:
        """Each site's own model, on the test parts of all sites and on the site's own."""
        on = {model: {site: self.of(model, site) for site in self.parts} for model in dict.fromkeys(models.values())}
        figures = {model: _everywhere([*parts.values()]) for model, parts in on.items()}
        evaluations = [
            _SiteEvaluation(site, on[model][site].examples, on[model][site].of_site(), figures[model])
            for site, model in models.items()
        ]
        first, *rest = figures.values()
        names = [name for name in first if all(name in one for one in rest)]
        metrics = {name: sum(one.everywhere[name] for one in evaluations) / len(evaluations) for name in names}
        drawn = [self._drawn(on[model].values()) for model in models.values()]
        return Evaluated(round=number, metrics=metrics, evaluations=tuple(evaluations), bootstrap=_means(drawn))

    def of(self, model: Path, site: int) -> _Counts:
        """A model on the test part of one site."""
        if model != self._loaded or self._engine is None:
            self._engine = self.problem.engine_with(ModelState.open(model), self._engine)
            self._loaded = model
        notes = self._notes(site) if self.draws else None
        recorder = Recorder(self.problem.loss, self.problem.metrics)
        metrics = self.problem.metrics if notes is None else notes.noting()
        result = evaluate(self._engine, self.parts[site], metrics=(*metrics, *recorder.extras()))
        counts = replace(self.counts(result), outputs=recorder.outputs())
        return counts if notes is None else replace(counts, drawn=notes.drawn)

    def _notes(self, site: int) -> DrawnMetrics | None:
        if site not in self._weights:
            self._weights[site] = weights_of(self.parts[site], site)
        weights = self._weights[site]
        return None if weights is None else DrawnMetrics(self.problem.metrics, weights, self.problem.loss)

    def _drawn(self, parts: Iterable[_Counts]) -> dict[str, tuple[float, ...]]:
        if not self.draws:
            return {}
        return figures(added(one.drawn for one in parts), self.problem.metrics, self.problem.loss)

    def counts(self, result: Evaluation | EvaluationProgress) -> _Counts:
        """What one site's test part adds to those of the others."""
        weight: int = getattr(result, self.problem.weigh)
        names = [metric.name for metric in self.problem.metrics]
        sums = {name: torch.tensor(result.sums[name], dtype=torch.float64) for name in names}
        return _Counts(
            examples=result.examples,
            weight=weight,
            loss=weight * result.loss,
            metrics=self.problem.metrics,
            sums=sums,
        )
