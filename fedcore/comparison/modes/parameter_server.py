"""Workers that pull the model from a parameter server and push gradients to it: ps-sync, ps-async, ps-ssp."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from fedcore.comparison.measure.traffic import TcpBytes
from fedcore.comparison.modes.base import InReport, Mode, Option, Trained
from fedcore.comparison.modes.baseline import GLOBAL_BATCH
from fedcore.comparison.parameter_server.server import run_shard
from fedcore.comparison.parameter_server.task import (
    Began,
    BytesUntil,
    LostWorkerReport,
    ModelSize,
    RoundOver,
    ServerEnded,
    ServerTask,
    assemble,
    shard_name,
)
from fedcore.comparison.parameter_server.worker import run_worker
from fedcore.comparison.results import CurvePoint, LostWorker, RunResult, Staleness
from fedcore.comparison.run import INITIAL_FILE, PlannedRun, worker_name
from fedcore.comparison.workers.models import SILENCE_SECONDS, everywhere, save_initial
from fedcore.comparison.workers.processes import Ended, WorkerEvent, WorkerReport, Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.training import snapshot
from fedcore.errors import ConfigurationError, EnvironmentFailure, FedcoreError, RunFailed
from fedcore.system.peers import BLAME_SECONDS, tells_of_lost_peer
from fedcore.wire.base import Scalar
from fedcore.wire.events import ClientDropped, EventSink, ExchangeDone

_GRACE: Final = 1.0
"""How long the last reports of the other processes are waited for then."""


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Mode):
    """One process for each shard of the server, and one for each worker.

    together: one step is made for all workers at once.
    bounded: a worker may be at most s steps ahead.
    slept: workers really take the time that the network model says, and messages are handled as they come: what the
        simulated clock is checked against.
    """

    together: bool = False
    bounded: bool = False
    slept: bool = False

    @property
    def options(self) -> Mapping[str, Option]:
        batch = GLOBAL_BATCH if self.together else {}
        bound = {"s": Option(3.0)} if self.bounded else {}
        return {**batch, "shards": Option(1, least=1), **bound}

    @property
    def in_report(self) -> InReport:
        return InReport(readers="server")

    @property
    def follows_rates(self) -> bool:
        return False  # the shards make the steps, and know no rounds

    def divides_batches(self, options: Mapping[str, Scalar]) -> bool:
        return self.together

    def bound(self, run: PlannedRun) -> float:
        """By how many steps a worker that reads may be ahead of the slowest one."""
        return 0.0 if self.together else float(run.options.get("s", math.inf))

    def round_steps(self, run: PlannedRun, schedule: Schedule) -> float:
        return schedule.global_steps(self.global_batch(run))[1] if self.together else schedule.mean_own_steps

    def train(self, run: PlannedRun, workers: Workers, emit: EventSink, warm: Any) -> Trained:
        if run.network is not None and run.cost is None:
            raise ConfigurationError("a network model needs the cost of a step")
        began, task = time.monotonic(), ServerTask(run=run)
        # What an interrupted run left there would be taken for the meeting points of this one.
        shutil.rmtree(task.folder, ignore_errors=True)
        task.folder.mkdir(parents=True)
        training = Training(task, workers, emit)
        result = run.result(initial_sha256=save_initial(run, workers))
        try:
            training.run()
        except FedcoreError as error:
            workers.stop()
            result = replace(result, status="failed", reason=str(error))
        if training.started is not None:
            result = replace(result, start_seconds=training.started - began)
        trained = _assembled(training.with_reports(result), task, training)
        shutil.rmtree(task.folder)
        return trained


def _assembled(result: RunResult, task: ServerTask, training: Training) -> Trained:
    """The result with the models of the rounds, out of what the shards kept."""
    rounds = [report.round for report in training.rounds]
    if not rounds:
        return Trained(result=result)
    try:
        (size,) = training.workers.call("assembler", assemble, task, rounds, silence=SILENCE_SECONDS)
    except FedcoreError as error:
        return Trained(result=replace(result, status="failed", reason=result.reason or str(error)))
    assert isinstance(size, ModelSize)  # noqa: S101 - it reports nothing else
    models = {number: everywhere(task.run, snapshot(task.run.folder, number)) for number in rounds}
    first = everywhere(task.run, task.run.folder / INITIAL_FILE)
    return Trained(result=replace(result, parameters=size.parameters), models={0: first, **models})


@dataclass(slots=True)
class Training:
    """The processes of a run while they train.

    rounds: what shard 0 reported after each.
    traffic: worker -> round -> bytes, counted when the worker saw that the round was over.
    finished: what shard 0 said at the end.
    started: when it said that the workers train, on the monotonic clock; None if it did not.
    """

    task: ServerTask
    workers: Workers
    emit: EventSink
    rounds: list[RoundOver] = field(default_factory=list)
    losses: list[LostWorker] = field(default_factory=list)
    traffic: dict[str, dict[int, TcpBytes]] = field(init=False)
    finished: ServerEnded | None = None
    started: float | None = None
    _ended: dict[str, Ended] = field(default_factory=dict)
    _lost_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.traffic = {name: {0: TcpBytes()} for name in self.task.run.site_names}

    def run(self) -> None:
        """Until the last process has ended.

        Raises RunFailed if the app's code fails, where a shard or every worker is lost, or one before the training
        began: then nobody has begun, and the server does not know it yet.
        """
        for shard in range(self.task.shards):
            self.workers.start(shard_name(shard), run_shard, self.task, shard)
        for worker, name in enumerate(self.traffic):
            self.workers.start(name, run_worker, self.task, worker)
        for event in self.workers.events(silence=self.task.seconds):
            self._take(event)
            if isinstance(event.report, Ended) and event.report.exitcode:
                self._lose(event.name, event.report)
        if self.finished is None or not self.finished.released:
            reasons = [f"{name}: {end.reason}" for name, end in self._ended.items() if end.reason]
            raise RunFailed("; ".join(["all workers were lost", *reasons]))

    def with_reports(self, result: RunResult) -> RunResult:
        """The result with what the processes reported while they trained."""
        last, end = {name: counts[max(counts)] for name, counts in self.traffic.items()}, self.finished
        curve = tuple(self._point(report) for report in (self._start(), *self.rounds))
        result = replace(
            result,
            samples=curve[-1].samples,
            seconds=curve[-1].seconds,
            simulated_seconds=curve[-1].simulated_seconds,
            bytes_up={name: count.sent for name, count in last.items()},
            bytes_down={name: count.received for name, count in last.items()},
            all_bytes_up={name: count.wire_sent for name, count in last.items()},
            all_bytes_down={name: count.wire_received for name, count in last.items()},
            curve=curve,
            losses=tuple(self.losses),
        )
        if end is None:
            return result
        bound = self.task.mode.bound(self.task.run)
        return replace(
            result,
            samples=end.samples,
            steps={name: end.steps.get(worker, 0) for worker, name in enumerate(self.traffic)},
            staleness=Staleness(clocks=end.clocks, updates=end.updates, bound=None if math.isinf(bound) else bound),
        )

    def _start(self) -> RoundOver:
        clock = 0.0 if self.task.simulated else None
        return RoundOver(round=0, samples=0, steps=0.0, seconds=0.0, simulated_seconds=clock, loss=0.0)

    def _point(self, report: RoundOver) -> CurvePoint:
        counts = self._bytes_at(report.round).values() if report.round else [TcpBytes()]
        return CurvePoint(
            round=report.round,
            samples=report.samples,
            steps=report.steps,
            seconds=report.seconds,
            simulated_seconds=report.simulated_seconds,
            bytes_up=sum(count.sent for count in counts) / len(counts),
            bytes_down=sum(count.received for count in counts) / len(counts),
        )

    def _bytes_at(self, number: int) -> dict[str, TcpBytes]:
        """Bytes of each worker up to the end of a round; a lost worker's last count stays."""
        return {
            name: counts[min((known for known in counts if known >= number), default=max(counts))]
            for name, counts in self.traffic.items()
        }

    def _take(self, event: WorkerEvent) -> None:
        match event.report:
            case Began():
                self.started = time.monotonic()
            case RoundOver() as report:
                self._end_round(report)
            case LostWorkerReport() as report:
                self._count_loss(report)
            case BytesUntil() as report:
                self.traffic[event.name][report.round] = TcpBytes(
                    sent=report.sent,
                    received=report.received,
                    wire_sent=report.all_sent,
                    wire_received=report.all_received,
                )
            case ServerEnded() as report:
                self.finished = report
            case Ended() as report:
                self._lost_at.setdefault(event.name, time.monotonic())
                self._ended[event.name] = report

    def _end_round(self, report: RoundOver) -> None:
        kill = self.task.run.kill
        if kill is not None and kill.round == report.round:
            self._lost_at[worker_name(kill.site)] = time.monotonic()
            self.workers.kill(worker_name(kill.site))
        before = self.rounds[-1] if self.rounds else self._start()
        lost = {loss.worker for loss in self.losses}
        # The bytes are those of the counts that are here already.
        earlier = self._bytes_at(report.round - 1)
        used = {name: count - earlier[name] for name, count in self._bytes_at(report.round).items()}
        self.emit(
            ExchangeDone(
                exchange=report.round,
                server_round=report.round,
                message_type="train",
                aggregation="none",
                survivors=[name for name in self.traffic if name not in lost],
                examples=report.samples - before.samples,
                metrics={"train_loss": report.loss},
                seconds=report.seconds - before.seconds,
                bytes_up={name: count.sent for name, count in used.items()},
                bytes_down={name: count.received for name, count in used.items()},
            )
        )
        self.rounds.append(report)

    def _count_loss(self, loss: LostWorkerReport) -> None:
        name, now = worker_name(loss.worker), time.monotonic()
        consequence = (
            "the others went on; each later step is the mean over their examples"
            if self.task.mode.together
            else "the others went on and waited for it no more"
        )
        seconds = now - self._lost_at.get(name, now)
        self.losses.append(LostWorker(worker=name, round=loss.round, consequence=consequence, seconds=seconds))
        end, log = self._ended.get(name), self.workers.folder / "logs" / f"{name}.log"
        why = f"{end.reason if end is not None and end.reason else loss.reason}; {consequence}; see {log}"
        self.emit(ClientDropped(exchange=loss.round, client=name, stage="train", reason=why))

    def _lose(self, name: str, end: Ended) -> None:
        """A process failed: shard 0 notices a worker that was killed, and goes on without it."""
        if name.startswith("shard-"):
            self._give_up()
        if _lost_its_peer(end):
            return
        if self.started is None:
            raise RunFailed(f"{name}: {end.reason}, before the training began")
        if end.exitcode > 0:
            raise RunFailed(f"{name}: {end.reason}")

    def _give_up(self) -> NoReturn:
        """A shard has failed, and with it all that talked to it: say which was the first."""
        with contextlib.suppress(EnvironmentFailure):
            self._hear_of_the_first()
            for event in self.workers.events(silence=_GRACE):
                self._take(event)
        shards = self._failed_shards()
        name = min(shards, key=lambda name: (shards[name].exitcode > 0, _lost_its_peer(shards[name])))
        if shards[name].exitcode > 0:
            raise RunFailed(f"{name}: {shards[name].reason}")
        raise RunFailed(
            f"{name} was lost in round {len(self.rounds) + 1} ({shards[name].reason}); "
            "its part of the model is nowhere else"
        )

    def _hear_of_the_first(self) -> None:
        """Wait while all shards that are known to have failed are those that lost another one."""
        events = self.workers.events(silence=BLAME_SECONDS)
        while all(map(_lost_its_peer, self._failed_shards().values())):
            if (event := next(events, None)) is None:
                return
            self._take(event)

    def _failed_shards(self) -> dict[str, Ended]:
        """How they ended, the first to be seen first."""
        return {name: end for name, end in self._ended.items() if name.startswith("shard-") and end.exitcode}


def _lost_its_peer(end: WorkerReport) -> bool:
    """Whether a process ended because another one had."""
    return isinstance(end, Ended) and tells_of_lost_peer(end.traceback)
