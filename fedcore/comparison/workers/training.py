"""What the worker of a baseline does: its part of every round, one report of it, one snapshot of the model.

Bytes begin to count with the first model, which rank 0 sends to the others. Neither bytes nor seconds hold the
snapshots, nor the practice step before the first round: what a first step imports, allocates and compiles belongs to
the start of a process, as in a federation, whose clients have trained before a run that counts.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from fedcore.comparison.measure.traffic import TcpBytes
from fedcore.comparison.run import INITIAL_FILE, PlannedRun, worker_name
from fedcore.comparison.workers.problem import Problem
from fedcore.comparison.workers.processes import ReportSink, WorkerReport
from fedcore.comparison.workers.schedule import Schedule
from fedcore.run.engine_config import EngineConfig
from fedcore.state import ModelState
from fedcore.state.files import FileSink
from fedcore.system.process_group import join_on_this_machine
from fedcore.training.averaging import Averager, outer_sgd
from fedcore.training.engines import Batch, Engine, World, make_engine
from fedcore.training.engines.batches import Rows, TrainingData
from fedcore.training.engines.streams import rows_to_pick
from fedcore.training.engines.transfer import load_entries
from fedcore.training.optimizers import Rates
from fedcore.training.seeds import seeded

LOOPBACK = "127.0.0.1"


class WorkerReady(WorkerReport):
    """Before the first round.

    counts: examples of the sites that the worker reads.
    sent, received: bytes until now.
    """

    counts: tuple[int, ...]
    parameters: int
    sent: int = 0
    received: int = 0


class RoundDone(WorkerReport):
    """At the end of every round, and of this round alone.

    examples: taken in the round, repetitions counted; where they were not `measured`, what the app said of itself.
    loss: sum over them, None if nobody said.
    sent, received: bytes.
    all_sent, all_received: every byte up to here, with those before the first round and the headers of TCP and IP.
    """

    round: int
    examples: int
    steps: int
    loss: float | None
    seconds: float
    measured: bool = True
    sent: int = 0
    received: int = 0
    all_sent: int = 0
    all_received: int = 0


class OwnEvaluation(WorkerReport):
    """After a round, where the app evaluates the model itself: what it reports."""

    round: int
    metrics: dict[str, float | tuple[float, ...]]


class OwnResults(WorkerReport):
    """At the end, where the app's ServerApp drives the training: what it found, as `results_of` has it."""

    results: dict[str, Any]


class Note(WorkerReport):
    """A line for who watches the run."""

    line: str


def wait_for_end(number: int, lost_after: int) -> None:
    """After round `number`: wait for the end by SIGKILL if it comes after this round, 0 for none."""
    while number and number == lost_after:
        signal.pause()


def snapshot(folder: Path, number: int) -> Path:
    """The file of the model at the end of a round."""
    return folder / f"round-{number:03d}.safetensors"


def train_pooled(
    report: ReportSink, run: PlannedRun, rank: int = 0, port: int = 0, listening: socket.socket | None = None
) -> None:
    """One rank of those that have all examples: each step takes the union of what the sites would take."""
    ranks = int(run.options["ranks"])
    if ranks > 1:
        _join(rank, ranks, port, listening)
    problem = Problem.of(run)
    schedule, size = problem.schedule, run.mode.global_batch(run)
    sites = range(run.sites)
    initial = ModelState.open(run.folder / INITIAL_FILE)
    loop = RoundLoop(
        report=report,
        clip_norm=problem.clip_norm,
        rates=problem.rates,
        make_engine=lambda: _engine_together(problem, run, World.current()) if ranks > 1 else _engine_alone(problem),
        data=problem.pooled_training(),
        rows=lambda number: schedule.pooled(
            size, seeds=[problem.order_seed(site, number) for site in sites], rank=rank, ranks=ranks
        ),
        seed=lambda number: problem.order_seed(0, number),
        folder=run.folder if rank == 0 else None,
        tensors=list(initial),
        lost_after=run.kill.round if run.kill and run.kill.site % ranks == rank else 0,
    )
    loop.practise()
    engine = loop.begin()
    engine.load(initial if rank == 0 else None, only=list(initial))
    report(_ready(schedule.counts if rank == 0 else (), engine, TcpBytes()))
    loop.run_rounds(problem.rounds)


def train_alone(report: ReportSink, run: PlannedRun, site: int) -> None:
    """One site on its own examples, as a federated client trains, but with nobody to average with."""
    problem = Problem.of(run)
    data = problem.training(site)
    schedule = Schedule.of(run.config, [rows_to_pick(data)])
    initial = ModelState.open(run.folder / INITIAL_FILE)
    loop = RoundLoop(
        report=report,
        clip_norm=problem.clip_norm,
        rates=problem.rates,
        make_engine=lambda: _engine_alone(problem),
        data=data,
        rows=lambda number: schedule.own(0, seed=problem.order_seed(site, number)),
        seed=lambda number: problem.order_seed(site, number),
        folder=run.folder / worker_name(site),
        tensors=list(initial),
        lost_after=run.lost_after(site),
    )
    loop.practise()
    engine = loop.begin()
    engine.load(initial, only=list(initial))
    report(_ready(schedule.counts, engine, TcpBytes()))
    loop.run_rounds(problem.rounds)


def train_together(
    report: ReportSink,
    run: PlannedRun,
    site: int,
    port: int,
    listening: socket.socket | None,
    *,
    averages: bool = False,
) -> None:
    """One rank of all, on the examples of its own site.

    Args:
        port: of the store where the ranks meet, which rank 0 keeps on the socket that it is given.
        averages: models, each rank having one of its own; otherwise gradients.
    """
    _join(site, run.sites, port, listening)
    world = World.current()
    problem = Problem.of(run)
    data = problem.training(site)
    schedule = Schedule.of(run.config, _counts(data, world))
    initial = ModelState.open(run.folder / INITIAL_FILE)
    size = run.mode.global_batch(run)
    loop = RoundLoop(
        report=report,
        clip_norm=problem.clip_norm,
        rates=problem.rates,
        make_engine=lambda: _engine_alone(problem) if averages else _engine_together(problem, run, world),
        data=data,
        rows=lambda number: schedule.share(site, size, seed=problem.order_seed(site, number)),
        seed=lambda number: problem.order_seed(site, number),
        folder=run.folder if site == 0 else None,
        tensors=list(initial),
        lost_after=run.lost_after(site),
        make_averaging=(lambda engine: _averaging(run, engine)) if averages else None,
    )
    loop.practise()
    engine = loop.begin()
    dist.barrier()
    before = TcpBytes.now()
    load_entries(engine.entries(only=list(initial)), initial if site == 0 else None, world)
    dist.barrier()
    report(_ready((schedule.counts[site],), engine, TcpBytes.now() - before))
    loop.run_rounds(problem.rounds)


def train_averaging(report: ReportSink, run: PlannedRun, site: int, port: int, listening: socket.socket | None) -> None:
    """As `train_together`, but the ranks average models, and each has one of its own."""
    train_together(report, run, site, port, listening, averages=True)


@dataclass(slots=True)
class Averaging:
    """Which steps are followed by an average: every h-th of a round, and its last."""

    averager: Averager
    h: int
    own: int = 0
    total: int = 0
    steps: int = 0

    def count(self, own: int, total: int) -> None:
        """After each step: this rank's examples in it, and those of all ranks."""
        self.own, self.total, self.steps = self.own + own, self.total + total, self.steps + 1
        if self.steps == self.h:
            self.meet()

    def meet(self) -> None:
        """Average, unless no step was made since the last time."""
        if self.steps:
            self.averager.average(self.own / self.total)
        self.own = self.total = self.steps = 0


@dataclass(slots=True, kw_only=True)
class RoundLoop:
    """A worker's rounds.

    make_engine, make_averaging: what trains a model, and averages it with the others' if models are averaged.
    rows, seed, rates: of a round, by its number; no rates for those of the optimizer.
    folder: for snapshots, None if another worker writes them.
    tensors: names of those that the first model has, and every snapshot.
    lost_after: the round after which this worker waits for its end by SIGKILL, 0 for none.
    clip_norm: bound on each step's gradient, 0 for none.
    """

    report: ReportSink
    make_engine: Callable[[], Engine]
    data: TrainingData
    rows: Callable[[int], Iterator[Rows]]
    seed: Callable[[int], int]
    folder: Path | None
    tensors: list[str]
    lost_after: int
    rates: Callable[[int], Rates | None] = lambda number: None
    make_averaging: Callable[[Engine], Averaging] | None = None
    clip_norm: float = 0.0
    engine: Engine = field(init=False)
    averaging: Averaging | None = field(init=False, default=None)

    def begin(self) -> Engine:
        """Make the engine of the rounds, whose model is to be loaded."""
        self.engine = self.make_engine()
        self.averaging = None if self.make_averaging is None else self.make_averaging(self.engine)
        return self.engine

    def practise(self) -> None:
        """One step of a model that is thrown away, before `begin`; the generators are afterwards as they were."""
        rows = self.rows
        with seeded(self.seed(1)):
            first = replace(self, rows=lambda number: islice(rows(number), 1))
            first.begin().model.train()
            first.train(1)
        _meet()

    def run_rounds(self, rounds: int) -> None:
        """The optimizer keeps its history from round to round."""
        self.engine.model.train()
        for number in range(1, rounds + 1):
            _meet()
            before, started = TcpBytes.now(), time.perf_counter()
            done = self.train(number)
            # What this rank has sent before a barrier is counted on both sides after it.
            _meet()
            seconds, total = time.perf_counter() - started, TcpBytes.now()
            used = total - before
            # A rank that ended would take its connections out of a count that others still make.
            _meet()
            self._save(number)
            measured = {"seconds": seconds, "sent": used.sent, "received": used.received}
            measured |= {"all_sent": total.wire_sent, "all_received": total.wire_received}
            self.report(done.model_copy(update=measured))
            wait_for_end(number, self.lost_after)

    def train(self, number: int) -> RoundDone:
        """One round, not timed."""
        examples = steps = 0
        loss = torch.zeros((), dtype=torch.float64, device=self.engine.device)
        rates = self.rates(number)
        if rates is not None:
            rates = rates.over(self.engine.optimizer, sum(1 for _ in self.rows(number)))
        with self.engine.seeded(self.seed(number)):
            for batch in self.engine.read(self.data, self.rows(number), seed=self.seed(number)):
                if rates is not None:
                    rates.set(steps)
                own = 0 if batch.weights is not None else len(batch)
                loss += self._step(batch, own)
                examples, steps = examples + own, steps + 1
        if rates is not None:
            rates.reset()
        if self.averaging is not None:
            self.averaging.meet()
        return RoundDone(round=number, examples=examples, steps=steps, loss=float(loss), seconds=0.0)

    def _step(self, batch: Batch, own: int) -> torch.Tensor | float:
        if self.averaging is None:
            return self.engine.step(batch, clip_norm=self.clip_norm)
        # Its own model follows the mean over its own share; with no share there is nothing to follow.
        loss = self.engine.step(replace(batch, total=own), clip_norm=self.clip_norm) if own else 0.0
        self.averaging.count(own, batch.total)
        return loss

    def _save(self, number: int) -> None:
        """All ranks, since running statistics may have to be averaged first; one of them writes."""
        if self.folder is None:
            if self.engine.world.size > 1:
                self.engine.save(None, only=self.tensors)
            return
        self.folder.mkdir(exist_ok=True)
        with FileSink(snapshot(self.folder, number), self.engine.layout(only=self.tensors)) as sink:
            self.engine.save(sink, only=self.tensors)


def _engine_alone(problem: Problem) -> Engine:
    """On this process's device, whatever group it is in."""
    return make_engine(problem.recipe(), EngineConfig(), World(device=World.current().device))


def _engine_together(problem: Problem, run: PlannedRun, world: World) -> Engine:
    values = {"engine": "ddp", "hook": run.options.get("hook", "none")}
    config = EngineConfig.from_mapping(values, ranks=world.size, where=run.label)
    return make_engine(problem.recipe(), config, world)


def _averaging(run: PlannedRun, engine: Engine) -> Averaging:
    options = run.options
    outer = outer_sgd(lr=float(options.get("outer-lr", 1.0)), momentum=float(options.get("outer-momentum", 0.0)))
    return Averaging(Averager(engine.module, outer), h=int(options["h"]))


def _ready(counts: tuple[int, ...], engine: Engine, used: TcpBytes) -> WorkerReady:
    parameters = sum(parameter.numel() for parameter in engine.parameters())
    return WorkerReady(counts=counts, parameters=parameters, sent=used.sent, received=used.received)


def _counts(data: TrainingData, world: World) -> list[int]:
    """Examples of every site, each said by the rank that has them."""
    counts = torch.zeros(world.size, dtype=torch.int64, device=world.device)
    counts[world.rank] = rows_to_pick(data)
    return cast(list[int], world.sum(counts).tolist())


def _join(rank: int, ranks: int, port: int, listening: socket.socket | None) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    join_on_this_machine(rank=rank, ranks=ranks, port=port, listening=listening.detach() if listening else None)


def _meet() -> None:
    """Wait for the other ranks, if there are any."""
    if dist.is_initialized():
        dist.barrier()
