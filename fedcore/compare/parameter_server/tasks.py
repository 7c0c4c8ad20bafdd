"""What the processes of one run are told, and where they find each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from fedcore.compare.initial import INITIAL_FILE
from fedcore.compare.problem import Problem
from fedcore.compare.run import ModeRun
from fedcore.state import ModelState
from fedcore.training.engines import Engine, EngineConfig, World, make_engine

if TYPE_CHECKING:
    from fedcore.compare.modes.parameter_server import ParameterServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run, the same for every process of it.

    slept: workers really take the time that the network model says, and messages are handled as they come: what the
    simulated clock is checked against.
    """

    run: ModeRun
    slept: bool = False

    @property
    def shards(self) -> int:
        """How many processes hold the model."""
        return int(self.run.mode.options["shards"])

    @property
    def together(self) -> bool:
        """Whether one step is made for all workers; otherwise each takes batches of its own."""
        return self._mode.together

    @property
    def bound(self) -> float:
        """By how many clocks a worker that reads may be ahead of the slowest one."""
        return self._mode.bound(self.run)

    @property
    def _mode(self) -> ParameterServer:
        return cast("ParameterServer", self.run.mode.mode)

    @property
    def global_batch(self) -> int:
        """Examples of one step of all workers together; 0 for all examples."""
        return self.run.mode.mode.global_batch(self.run)

    @property
    def seconds(self) -> float:
        """How long a process that is silent is waited for."""
        return self.run.app.settings.train_seconds

    @property
    def simulated(self) -> bool:
        """Whether the run has a simulated clock."""
        return self.run.network is not None and not self.slept

    @property
    def initial(self) -> Path:
        """The model that the run begins with."""
        return self.run.folder / INITIAL_FILE

    @property
    def pieces(self) -> Path:
        """Folder of what shards keep, and of the meeting points."""
        return self.run.folder / "shards"

    def problem(self) -> Problem:
        """Import the app."""
        return Problem.load(self.run.app, config=self.run.config, sites=self.run.sites)

    def engine(self, problem: Problem, device: torch.device | None = None) -> Engine:
        """The app's model as the run begins, on a device, by default this process's own."""
        engine = make_engine(problem.recipe(), EngineConfig(), World(device=device or World.current().device))
        state = ModelState.open(self.initial)
        engine.load(state, only=list(state))
        return engine

    def round_samples(self, problem: Problem) -> int:
        """Examples that all workers push in one round."""
        schedule = problem.schedule
        return schedule.global_samples(self.global_batch) if self.together else schedule.samples

    def worker_meeting(self, worker: int, shard: int) -> Path:
        """Where a worker and a shard find each other."""
        return self.pieces / f"worker-{worker}-shard-{shard}"

    def shard_meeting(self, shard: int) -> Path:
        """Where the leading shard and another find each other."""
        return self.pieces / f"leader-shard-{shard}"

    def piece(self, number: int, shard: int) -> Path:
        """A shard's range of the model of a round."""
        return self.pieces / f"round-{number:03d}.shard-{shard}.npy"
