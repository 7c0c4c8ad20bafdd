"""The modes that train a `supervised_app` without a server: centralized, local, all-reduce, averaging.

Each worker is a process. A rank of a group that is lost ends the run, since a collective needs every rank; a site that
trains alone is missed by nobody.
"""

from __future__ import annotations

import contextlib
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from statistics import mean
from typing import Any, ClassVar, Final, Literal, TypeAlias

from fedcore.comparison.app_evaluation import AppEvaluation
from fedcore.comparison.modes.base import Mode, Option, Trained
from fedcore.comparison.results import CurvePoint, LostWorker
from fedcore.comparison.run import INITIAL_FILE, PlannedRun
from fedcore.comparison.workers.models import Models, everywhere, save_initial
from fedcore.comparison.workers.processes import Ended, WorkerReport, Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.training import (
    LOOPBACK,
    Note,
    OwnEvaluation,
    OwnResults,
    RoundDone,
    WorkerReady,
    snapshot,
)
from fedcore.errors import EnvironmentFailure
from fedcore.run.settings import ROUNDS_KEY
from fedcore.simulation.devices.network import Cost, Network
from fedcore.system.peers import BLAME_SECONDS, first_cause, tells_of_lost_peer
from fedcore.wire.events import AppPrinted, EventSink, ExchangeDone

GLOBAL_BATCH: Final = {"global-batch": Option(0)}
"""Examples of one step of all workers together; 0 for the default of the mode."""

Way: TypeAlias = Literal["sent", "received"]
_WAYS: Final[tuple[Way, Way]] = ("sent", "received")


@dataclass(frozen=True, kw_only=True)
class Baseline(Mode):
    """A mode that trains a `supervised_app` without a server."""

    goes_on: ClassVar[bool] = False
    """Whether the others go on where a worker is lost."""
    consequence: ClassVar[str]
    """What follows for a run that loses a worker."""

    @abstractmethod
    def start(self, run: PlannedRun, workers: Workers) -> tuple[str, ...]:
        """Start all workers; their names, in the order of their sites."""

    @abstractmethod
    def clock(self, run: PlannedRun, log: RoundLog, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        """Seconds from the start to the end of each whole round, on other machines and links."""

    def round_steps(self, run: PlannedRun, schedule: Schedule) -> float:
        """By default those of workers that step together."""
        return schedule.global_steps(self.global_batch(run))[1]

    def models(self, run: PlannedRun, log: RoundLog, number: int) -> Models:
        """What each site is evaluated with after a round."""
        return everywhere(run, snapshot(run.folder, number))

    def train(self, run: PlannedRun, workers: Workers, emit: EventSink, warm: Any) -> Trained:
        began = time.monotonic()
        initial = save_initial(run, workers)
        log = RoundLog(names=self.start(run, workers))
        try:
            self._follow(run, workers, emit, log)
        except EnvironmentFailure as error:
            workers.stop()
            log.reason = str(error)
        curve = log.curve(self._simulated(run, log))
        result = run.result(
            status="failed" if log.reason else "finished",
            reason=log.reason,
            initial_sha256=initial,
            parameters=max((ready.parameters for ready in log.ready.values()), default=0),
            samples=curve[-1].samples,
            reported_examples=log.reported_examples(),
            steps=log.steps(),
            seconds=curve[-1].seconds,
            start_seconds=None if log.started is None else log.started - began,
            simulated_seconds=curve[-1].simulated_seconds,
            bytes_up=log.bytes_of("sent"),
            bytes_down=log.bytes_of("received"),
            all_bytes_up=log.all_bytes("all_sent"),
            all_bytes_down=log.all_bytes("all_received"),
            curve=curve,
            losses=tuple(log.losses),
            by_server=log.app_evaluation().server,
        )
        if not log.counts():  # the app was trained, and evaluated, by its own ServerApp
            return Trained(result=result)
        models = {number: self.models(run, log, number) for number in range(1, len(log.rounds) + 1)}
        return Trained(result=result, models={0: everywhere(run, run.folder / INITIAL_FILE), **models})

    def _follow(self, run: PlannedRun, workers: Workers, emit: EventSink, log: RoundLog) -> None:
        for event in workers.events(silence=run.app.settings.train_seconds):
            match event.report:
                case Note(line=line):
                    emit(AppPrinted(line=line))
                case Ended() as end:
                    if end.exitcode:
                        self._lose(run, workers, log, event.name, end)
                case report:
                    log.add(event.name, report)
                    if log.started is None and len(log.ready) == len(log.names):
                        log.started = time.monotonic()
            for number in log.close_rounds():
                emit(log.event(number))
                if run.kill is not None and run.kill.round == number:
                    # Centralized training has workers of its own, whatever the sites.
                    workers.kill(log.names[run.kill.site % len(log.names)])

    def _lose(self, run: PlannedRun, workers: Workers, log: RoundLog, name: str, end: Ended) -> None:
        """A worker ended before its time: the others go on, where they need it for nothing, or all end now."""
        noticed = time.monotonic()
        name, end = worker_to_blame(workers, name, end)
        if end.exitcode > 0:
            workers.stop()
            log.reason = f"{name}: {end.reason}"
            return
        number, consequence = log.last_round(name), self.consequence
        log.lost.add(name)
        if not self.goes_on:
            workers.stop()
        if number == int(run.config[ROUNDS_KEY]):
            consequence = "all its rounds were over"
        elif not self.goes_on or log.lost == set(log.names):
            log.reason = f"{name} was lost after round {number} ({end.reason}); {consequence}"
        seconds = time.monotonic() - noticed
        log.losses.append(LostWorker(worker=name, round=number, consequence=consequence, seconds=seconds))

    def _simulated(self, run: PlannedRun, log: RoundLog) -> list[float]:
        """The simulated clock at the end of every whole round; empty without a network."""
        counts = log.counts()
        if run.network is None or run.cost is None or len(counts) != run.sites:
            return []
        return self.clock(run, log, Schedule.of(run.config, counts), run.cost, run.network)


def _examples_of(reports: Mapping[str, RoundDone]) -> int:
    """Examples of one round, all workers together."""
    return sum(report.examples for report in reports.values())


def _train_loss(reports: Mapping[str, RoundDone]) -> float | None:
    """That of each example before its step, mean over all of them; None if nobody reports it."""
    losses = [report.loss for report in reports.values() if report.loss is not None]
    return sum(losses) / max(1, _examples_of(reports)) if losses else None


def start_group(workers: Workers, names: Sequence[str], target: Callable[..., object], run: PlannedRun) -> None:
    """Start the ranks of one process group, each with `target(report, run, rank, port, listening)`."""
    # Rank 0 gets the socket that its store listens on, so that nobody races for a port.
    with socket.create_server((LOOPBACK, 0)) as listening:
        port = listening.getsockname()[1]
        for rank, name in enumerate(names):
            workers.start(name, target, run, rank, port, listening if rank == 0 else None)


def worker_to_blame(workers: Workers, name: str, end: Ended) -> tuple[str, Ended]:
    """The worker whose end led to the others': one that merely lost its peer waits for the peer's own end."""

    def endings() -> Iterator[tuple[str, Ended]]:
        yield name, end
        with contextlib.suppress(EnvironmentFailure):
            for other, report in workers.events(silence=BLAME_SECONDS):
                if isinstance(report, Ended):
                    yield other, report

    return first_cause(endings(), lambda one: tells_of_lost_peer(one[1].reason))


@dataclass(slots=True, kw_only=True)
class RoundLog:
    """What the workers have reported up to now. A round is whole when every worker that was not lost has reported it.

    names: the workers, in the order of their sites.
    ready: what each said before its first round.
    rounds: the whole rounds, each by worker.
    evaluations: by round, where a worker evaluates the model itself.
    results: what its strategy found.
    reason: why the run ended before its time, empty if it did not.
    started: when the last worker was ready for its first round, on the monotonic clock; None if it was not.
    """

    names: tuple[str, ...]
    ready: dict[str, WorkerReady] = field(default_factory=dict)
    rounds: list[dict[str, RoundDone]] = field(default_factory=list)
    evaluations: dict[int, OwnEvaluation] = field(default_factory=dict)
    results: OwnResults = field(default_factory=lambda: OwnResults(results={}))
    losses: list[LostWorker] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    reason: str = ""
    started: float | None = None
    _open: dict[int, dict[str, RoundDone]] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def last_round(self, name: str) -> int:
        """The last round that a worker has reported, 0 for none."""
        return self._last.get(name, 0)

    def add(self, name: str, report: WorkerReport) -> None:
        """Take a worker's report."""
        match report:
            case WorkerReady():
                self.ready[name] = report
            case RoundDone():
                self._last[name] = report.round
                self._open.setdefault(report.round, {})[name] = report
            case OwnEvaluation():
                self.evaluations[report.round] = report
            case OwnResults():
                self.results = report

    def close_rounds(self) -> Iterator[int]:
        """The rounds that have become whole, numbered from 1 on."""
        while reports := self._open.get(len(self.rounds) + 1):
            if not reports.keys() | self.lost >= set(self.names):
                return
            self.rounds.append(reports)
            yield len(self.rounds)

    def counts(self) -> tuple[int, ...]:
        """Training examples of each site."""
        return tuple(count for name in self.names if name in self.ready for count in self.ready[name].counts)

    def event(self, number: int) -> ExchangeDone:
        """A whole round as the events of a run tell it; the loss is that of each example before its step."""
        reports = self.rounds[number - 1]
        loss = _train_loss(reports)
        return ExchangeDone(
            exchange=number,
            server_round=number,
            message_type="train",
            aggregation="none",
            survivors=sorted(reports),
            examples=_examples_of(reports),
            metrics={} if loss is None else {"train_loss": loss},
            seconds=max(report.seconds for report in reports.values()),
            bytes_up={name: report.sent for name, report in reports.items()},
            bytes_down={name: report.received for name, report in reports.items()},
        )

    def app_evaluation(self) -> AppEvaluation:
        """What the app's own evaluation found; nothing if there was none."""
        return AppEvaluation.of(self.results.results, {number: own.metrics for number, own in self.evaluations.items()})

    def curve(self, simulated: Sequence[float]) -> tuple[CurvePoint, ...]:
        """The start and all whole rounds; evaluated only where a worker did so."""
        samples: Iterator[int | None] = accumulate(map(_examples_of, self.rounds))
        steps: Iterator[float | None] = self._mean("steps", start=0.0)
        if not self._measured:
            samples = repeat(None, len(self.rounds))
        if not self._steps_counted:
            steps = repeat(None, len(self.rounds))
        seconds = accumulate(max(report.seconds for report in reports.values()) for reports in self.rounds)
        sent, received = (self._mean(way, start=self._mean_before(way)) for way in _WAYS)
        rows = [(0, 0.0, 0.0, 0.0, 0.0), *zip(samples, steps, seconds, sent, received, strict=True)]
        clock = [0.0, *simulated] if simulated else [None] * len(rows)
        own = self.app_evaluation().rounds
        return tuple(
            CurvePoint(
                round=number,
                samples=examples,
                steps=made if self._steps_counted else None,
                seconds=at,
                simulated_seconds=then,
                bytes_up=up,
                bytes_down=down,
                metrics=own.get(number, {}),
                train_loss=_train_loss(self.rounds[number - 1]) if number else None,
            )
            for number, ((examples, made, at, up, down), then) in enumerate(zip(rows, clock, strict=True))
        )

    def reported_examples(self) -> int | None:
        """Of an app's own loop, the examples that it reports of all trainings; None if they were counted instead."""
        return None if self._measured else sum(map(_examples_of, self.rounds)) or None

    def steps(self) -> dict[str, int]:
        """Optimizer steps of each worker in all whole rounds; {} where nobody counted them."""
        if not self._steps_counted:
            return {}
        return self._total("steps", start=dict.fromkeys(self.names, 0))

    def bytes_of(self, way: Way) -> dict[str, int]:
        """Bytes of each worker, with what it got before the first round."""
        return self._total(way, start={name: self._before(name, way) for name in self.names})

    def all_bytes(self, name: Literal["all_sent", "all_received"]) -> dict[str, int]:
        """Every byte of each worker, as it said last."""
        last = {worker: report for reports in self.rounds for worker, report in reports.items()}
        return {worker: int(getattr(report, name)) for worker, report in last.items()}

    def sent_for_each(self, occasions: int) -> float:
        """Bytes that one worker sent for each of so many occasions; without the first model."""
        sent = sum(report.sent for reports in self.rounds for report in reports.values())
        return sent / len(self.names) / max(1, occasions)

    @property
    def _measured(self) -> bool:
        return all(report.measured for reports in self.rounds for report in reports.values())

    @property
    def _steps_counted(self) -> bool:
        """Whether there are steps to count: trees grow without any."""
        return self._measured and any(report.steps for reports in self.rounds for report in reports.values())

    def _mean(self, name: str, *, start: float) -> Iterator[float]:
        """Bytes or steps up to the end of each round, mean over the workers."""
        each = (sum(getattr(report, name) for report in reports.values()) / len(self.names) for reports in self.rounds)
        return (start + total for total in accumulate(each))

    def _mean_before(self, way: Way) -> float:
        return mean(self._before(name, way) for name in self.names)

    def _before(self, name: str, way: Way) -> int:
        return int(getattr(self.ready[name], way)) if name in self.ready else 0

    def _total(self, name: str, *, start: Mapping[str, int]) -> dict[str, int]:
        totals = dict(start)
        for reports in self.rounds:
            for worker, report in reports.items():
                totals[worker] += int(getattr(report, name))
        return totals
