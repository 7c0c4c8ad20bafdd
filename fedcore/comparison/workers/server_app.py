"""Centralized training of any Flower app: its ClientApp on the pooled data, driven by its ServerApp.

The ServerApp runs as it is, so that the initial model, the rounds and the configuration are the same. There is
one partition that holds everything, and each round's training starts from the model of the round before. With a
strategy that averages (FedAvg) this is plain centralized training for the same number of samples.
"""

from __future__ import annotations

import signal
import socket
import time
from dataclasses import dataclass, field, replace

from fedcore.comparison.results import as_metrics, number_of
from fedcore.comparison.run import INITIAL_FILE, MODEL_FILE, PlannedRun
from fedcore.comparison.workers.problem import Problem, TreesProblem
from fedcore.comparison.workers.processes import ReportSink, ignore_report
from fedcore.comparison.workers.training import Note, OwnEvaluation, OwnResults, RoundDone, WorkerReady, train_pooled
from fedcore.comparison.workers.trees import grow_pooled
from fedcore.errors import AppError, ConfigurationError, UsageError
from fedcore.flower.app import AppBundle
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.flower.serverside import ServerAppOutcome, run_server_app
from fedcore.monitoring.run_record import metric_like
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.run.requirements import waiting_for
from fedcore.run.settings import ROUNDS_KEY, JobSettings
from fedcore.simulation.plain import PlainSimulation
from fedcore.simulation.workers.executor import InlineExecutor
from fedcore.state import ModelState
from fedcore.wire.events import FiguresFound
from fedcore.wire.tasks import is_query, is_training

# Nobody sends anything here, so there is nothing to protect.
_PLAIN = JobSettings(aggregation="plain")


def train_centralized(
    report: ReportSink, run: PlannedRun, rank: int = 0, port: int = 0, listening: socket.socket | None = None
) -> None:
    """A worker of mode `centralized`: on the schedule that all baselines share, or driven by the app's ServerApp.

    The second is for apps that do their own training. Nobody counts the examples that they take, and no steps.
    """
    ignored = [key for key, option in run.mode.options.items() if run.options[key] != option.default]
    try:
        problem = Problem.of(run)
    except ConfigurationError as reason:
        _check_options(ignored, str(reason))
        report(Note(line=f"centralized by the ServerApp of {run.app.name}: {reason}"))
        _run_server_app(report, run)
    else:
        if isinstance(problem, TreesProblem):
            _check_options(ignored, "trees grow without steps")
            grow_pooled(report, run, problem)
        else:
            train_pooled(report, run, rank, port, listening)


def _check_options(ignored: list[str], reason: str) -> None:
    if ignored:
        raise ConfigurationError(f"{', '.join(ignored)} cannot be set for this app: {reason}", check="global-batch")


def _run_server_app(report: ReportSink, run: PlannedRun) -> None:
    if ROUNDS_KEY in run.config:
        # A round that does not count, as the clients of a federation have one: see `ReusableFederation`.
        _drive(ignore_report, replace(run, config={**run.config, ROUNDS_KEY: 1}, kill=None))
    initial = ModelState.open(run.folder / INITIAL_FILE)
    report(WorkerReady(counts=(), parameters=sum(spec.size for spec in initial.layout.specs)))
    outcome = _drive(report, run)
    if outcome.state is not None:
        outcome.state.save(run.folder / MODEL_FILE)


def _drive(report: ReportSink, run: PlannedRun) -> ServerAppOutcome:
    # Nothing is aggregated, so a strategy that needs single updates sees the one that there is.
    return run_server_app(
        run.app,
        backend=PooledBackend(run, report),
        run="centralized",
        run_config=dict(run.config),
        aggregation="plain",
        most_nodes=lambda: run.sites,
        on_results=lambda results: report(OwnResults(results=results)),
    )


@dataclass(slots=True)
class PooledBackend:
    """An `ExchangeBackend` in which all clients are one process with all the data; it reports every exchange."""

    run: PlannedRun
    report: ReportSink
    _exchanges: PlainSimulation = field(init=False)

    def __post_init__(self) -> None:
        app = self.run.app
        self._exchanges = PlainSimulation(
            run="centralized",
            executor=InlineExecutor(app=app, clients=1),
            clients=(1,),
            settings=replace(_PLAIN, train_seconds=app.settings.train_seconds),
            run_config=self.run.config,
            app_sha256=AppBundle.from_folder(app.folder).sha256,
        )

    def nodes(self) -> list[int]:
        """As many as there are sites, so that the ServerApp need not know."""
        return list(range(1, self.run.sites + 1))

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """All that there are are there."""
        raise ConfigurationError(waiting_for(nodes, setting, present, self.run.sites, ()))

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Nothing is aggregated here."""
        raise UsageError("centralized training knows no secure exchanges")

    def report_figures(self, figures: FiguresFound) -> None:
        """All of it comes with the results."""

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """Do the work once, on all the data; the reply is that of the first node that was asked."""
        started = time.monotonic()
        first = request.messages[0]
        (reply,) = self._exchanges.ask(replace(request, messages=(replace(first, node=1),)))
        if reply.error is not None:
            raise AppError(f"the ClientApp failed: {reply.error.reason}")
        self._tell(request.server_round, first.message_type, reply, time.monotonic() - started)
        return [replace(reply, node=first.node)]

    def _tell(self, number: int, message_type: str, reply: PlainReply, seconds: float) -> None:
        examples, metrics = reply.examples, reply.metrics
        if is_query(message_type):
            return
        if not is_training(message_type):
            self.report(OwnEvaluation(round=number, metrics=as_metrics(metrics)))
            return
        loss = number_of(as_metrics(metrics), metric_like(metrics, "loss") or "")
        total = None if loss is None else loss * examples
        done = RoundDone(round=number, examples=examples, steps=0, loss=total, seconds=seconds, measured=False)
        self.report(done)
        while self.run.kill is not None and self.run.kill.round == number:
            signal.pause()
