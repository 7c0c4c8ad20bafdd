"""Centralized training of any Flower app: its ClientApp on the pooled data, driven by its ServerApp.

The ServerApp runs as it is, so that the initial model, the rounds and the configuration are the same. There is
one partition that holds everything, and each round's training starts from the model of the round before. With a
strategy that averages (FedAvg) this is plain centralized training for the same number of samples.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedcore.compare.initial import INITIAL_FILE
from fedcore.compare.problem import Problem
from fedcore.compare.run import MODEL_FILE, ModeRun
from fedcore.compare.training import EVALUATED, READY, ROUND, train_pooled
from fedcore.compare.workers import ReportSink
from fedcore.config import JobSettings, planned_rounds
from fedcore.errors import ConfigurationError
from fedcore.events import EventSink, ExchangeDone, RunEnded, RunEvent, RunStarted
from fedcore.exchange import ExchangeReply, ExchangeRequest, make_task
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.clientside import ClientRunner
from fedcore.flower.serverside import run_server_app
from fedcore.record import metric_like
from fedcore.simulate import model_ref
from fedcore.state import ModelState
from fedcore.wire import RunStatus, Scalar

POOL = "pooled"
# Nobody sends anything here, so there is nothing to protect.
PLAIN = JobSettings(aggregation="plain")


@dataclass(slots=True, kw_only=True)
class PooledBackend:
    """An `ExchangeBackend` in which all clients are one process with all the data.

    clients: how many nodes the ServerApp is told of, so that it need not know.
    """

    app: FlowerApp
    clients: int
    run_config: Mapping[str, Scalar]
    emit: EventSink
    _runner: ClientRunner = field(init=False)
    _app_sha256: str = field(init=False)
    _exchange: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._runner = ClientRunner(app=self.app, client_id=1, node_config={"partition-id": 0, "num-partitions": 1})
        self._app_sha256 = AppBundle.from_folder(self.app.folder).sha256

    def nodes(self) -> list[int]:
        return list(range(1, self.clients + 1))

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Do the work once, on all the data."""
        started = time.monotonic()
        self._exchange += 1
        task = make_task(
            request,
            settings=replace(PLAIN, train_seconds=self.app.settings.train_seconds),
            run="centralized",
            exchange=self._exchange,
            attempt=1,
            cohort=[1],
            app_sha256=self._app_sha256,
            run_config=self.run_config,
            model=model_ref(request.model),
            encoding=None,
        )
        result = self._runner.run(task, request.model)
        self.emit(self._done(request, result.examples, result.metrics, time.monotonic() - started))
        return [ExchangeReply(node=0, state=result.state(), examples=result.examples, metrics=result.metrics)]

    def _done(
        self, request: ExchangeRequest, examples: int, metrics: Mapping[str, Any], seconds: float
    ) -> ExchangeDone:
        return ExchangeDone(
            exchange=self._exchange,
            server_round=request.server_round,
            message_type=request.message_type,
            aggregation="none",
            survivors=[POOL],
            examples=examples,
            metrics=dict(metrics),
            seconds=seconds,
        )


def run_centralized(
    app: FlowerApp, *, clients: int, run_config: Mapping[str, Scalar], emit: EventSink, out: Path | None
) -> None:
    """Train centrally in this process; saves the final model to `out`."""
    emit(RunStarted(app=app.name, aggregation="none", rounds=planned_rounds(run_config)))
    backend = PooledBackend(app=app, clients=clients, run_config=run_config, emit=emit)
    # Nothing is aggregated, so a strategy that needs single updates sees the one that there is.
    outcome = run_server_app(app, backend=backend, run="centralized", run_config=dict(run_config), aggregation="plain")
    if out is not None and outcome.state is not None:
        outcome.state.save(out)
    emit(RunEnded(status=RunStatus.FINISHED))


def train_centralized(
    report: ReportSink, run: ModeRun, rank: int = 0, port: int = 0, listening: socket.socket | None = None
) -> None:
    """A worker of mode `centralized`: on the schedule that all baselines share, or driven by the app's ServerApp.

    The second is for apps that do their own training. Its rounds report the examples that the app counts, and no steps.
    """
    try:
        Problem.load(run.app, config=run.config, sites=run.sites)
    except ConfigurationError as reason:
        if run.mode.options["ranks"] != 1:
            raise
        report("log", {"line": f"centralized by the ServerApp of {run.app.name}: {reason}"})
    else:
        train_pooled(report, run, rank, port, listening)
        return
    parameters = sum(spec.size for spec in ModelState.open(run.folder / INITIAL_FILE).layout.specs)
    report(READY, {"counts": [], "parameters": parameters, "sent": 0, "received": 0})

    def translate(event: RunEvent) -> None:
        if isinstance(event, ExchangeDone):
            report(*_as_report(event))
            while run.kill is not None and event.trains and run.kill.round == event.server_round:
                signal.pause()

    out = run.folder / MODEL_FILE
    run_centralized(run.app, clients=run.sites, run_config=run.config, emit=translate, out=out)


def _as_report(done: ExchangeDone) -> tuple[str, dict[str, Any]]:
    number, metrics, examples = done.server_round, done.metrics, done.examples
    loss, accuracy = (metrics.get(metric_like(metrics, word) or "") for word in ("loss", "acc"))
    if not done.trains:
        return EVALUATED, {"round": number, "loss": loss, "accuracy": accuracy, "examples": examples}
    both = {"round": number, "samples": examples, "steps": 0, "loss": (loss or 0.0) * examples}
    return ROUND, {**both, "seconds": done.seconds, "sent": 0, "received": 0}
