"""The task of the processes of one run, their reports, and their meeting points."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

import numpy as np
import torch

from fedcore.comparison.parameter_server.shard import FlatModel, KeyRanges
from fedcore.comparison.run import INITIAL_FILE, PlannedRun, RunMode
from fedcore.comparison.workers.problem import Problem
from fedcore.comparison.workers.processes import ReportSink, WorkerReport
from fedcore.comparison.workers.training import snapshot
from fedcore.state import ModelState
from fedcore.state.files import FileSink
from fedcore.training.engines import Engine, EngineConfig, World, make_engine

_PAUSE: Final = 0.01


class ServerMode(RunMode, Protocol):
    """What the processes know of their mode, a `fedcore.comparison.modes.parameter_server.ParameterServer`."""

    @property
    def together(self) -> bool: ...

    @property
    def slept(self) -> bool: ...

    def bound(self, run: PlannedRun) -> float: ...


class Began(WorkerReport):
    """Shard 0: all workers are there."""


class RoundOver(WorkerReport):
    """Shard 0: all examples of a round were pushed, and its model is kept.

    samples, steps, seconds: from the start; steps of one worker, mean over the workers.
    """

    round: int
    samples: int
    steps: float
    seconds: float
    simulated_seconds: float | None
    loss: float


class LostWorkerReport(WorkerReport):
    """Shard 0: a worker was lost while a round went on."""

    worker: int
    round: int
    reason: str


class ServerEnded(WorkerReport):
    """Shard 0, at its end.

    clocks, updates: as in `Staleness`.
    released: workers that trained to their end.
    """

    clocks: dict[int, int]
    updates: dict[int, int]
    samples: int
    released: int
    steps: dict[int, int]


class BytesUntil(WorkerReport):
    """A worker: what it had sent and received when it saw that a round was over.

    all_sent, all_received: with the headers of TCP and IP.
    """

    round: int
    sent: int
    received: int
    all_sent: int
    all_received: int


class ModelSize(WorkerReport):
    """How many numbers are trained."""

    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTask:
    """One run, the same for every process of it."""

    run: PlannedRun

    @property
    def mode(self) -> ServerMode:
        """Its mode."""
        return cast("ServerMode", self.run.mode)

    @property
    def shards(self) -> int:
        """How many processes hold the model."""
        return int(self.run.options["shards"])

    @property
    def seconds(self) -> float:
        """How long a process that is silent is waited for."""
        return self.run.app.settings.train_seconds

    @property
    def simulated(self) -> bool:
        """Whether the run has a simulated clock."""
        return self.run.network is not None and not self.mode.slept

    @property
    def folder(self) -> Path:
        """Of what shards keep, and of the files through which processes find each other."""
        return self.run.folder / "shards"

    def problem(self) -> Problem:
        """Import the app."""
        return Problem.of(self.run)

    def engine(self, problem: Problem, device: torch.device | None = None) -> Engine:
        """The app's model as the run begins, on a device, by default this process's own."""
        engine = make_engine(problem.recipe(), EngineConfig(), World(device=device or World.current().device))
        state = ModelState.open(self.run.folder / INITIAL_FILE)
        engine.load(state, only=list(state))
        return engine

    def round_samples(self, problem: Problem) -> int:
        """Examples that all workers push in one round."""
        schedule = problem.schedule
        return schedule.global_samples(self.mode.global_batch(self.run)) if self.mode.together else schedule.samples

    def worker_meeting_point(self, worker: int, shard: int) -> Path:
        """The meeting point of a worker and a shard."""
        return self.folder / f"worker-{worker}-shard-{shard}"

    def wait_for_all(self, worker: int) -> None:
        """Wait until every worker is ready to train: nobody's start is in the seconds of another's training."""
        ready = [self.folder / f"worker-{site}-ready" for site in range(self.run.sites)]
        ready[worker].touch()
        while not all(path.exists() for path in ready):
            time.sleep(_PAUSE)

    def shard_meeting_point(self, shard: int) -> Path:
        """The meeting point of the leading shard and another."""
        return self.folder / f"leader-shard-{shard}"

    def range_file(self, number: int, shard: int) -> Path:
        """A shard's range of the model of a round."""
        return self.folder / f"round-{number:03d}.shard-{shard}.npy"


def shard_name(shard: int) -> str:
    """The name of its process."""
    return f"shard-{shard}"


def assemble(report: ReportSink, task: ServerTask, rounds: Sequence[int]) -> None:
    """Write the models of some rounds, out of what the shards kept, each with the tensors of the initial one."""
    engine = task.engine(task.problem(), torch.device("cpu"))
    names = list(ModelState.open(task.run.folder / INITIAL_FILE))
    ranges = KeyRanges.of(engine.module, shards=task.shards)
    flat = FlatModel(engine.module, ranges)
    for number in rounds:
        parts = [np.load(task.range_file(number, shard)) for shard in range(task.shards)]
        flat.write(torch.from_numpy(np.concatenate(parts)), buffers=True)
        with FileSink(snapshot(task.run.folder, number), engine.layout(only=names)) as sink:
            engine.save(sink, only=names)
    report(ModelSize(parameters=ranges.trained))
