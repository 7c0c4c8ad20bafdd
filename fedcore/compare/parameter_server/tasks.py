"""What the processes of one run are told, and how they find each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedcore.compare.network import Cost, Network
from fedcore.compare.problem import Problem
from fedcore.flower.app import FlowerApp
from fedcore.state import ModelState
from fedcore.training.engines import Engine, make_engine
from fedcore.wire import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run, the same for every process of it.

    initial: the model that it begins with. folder: for meeting points and the shards' pieces. together: one step for
    all workers, of `global_batch` examples; otherwise each worker takes batches of its own, at most `bound` clocks
    ahead of the slowest. network, cost: the simulated clock, None for messages as they come. slept: workers really take
    the time that `cost` and `network` say, and there is no simulated clock.
    """

    app: FlowerApp
    config: Mapping[str, Scalar]
    sites: int
    shards: int
    initial: Path
    folder: Path
    bound: float
    together: bool
    global_batch: int
    network: Network | None
    cost: Cost | None
    slept: bool = False

    def problem(self) -> Problem:
        """Import the app."""
        return Problem.load(self.app, config=self.config, sites=self.sites)

    def engine(self, problem: Problem) -> Engine:
        """The app's model as the run begins, on this process's device."""
        engine = make_engine(problem.recipe())
        state = ModelState.open(self.initial)
        engine.load(state, only=list(state))
        return engine

    def round_samples(self, problem: Problem) -> int:
        """Examples that all workers push in one round."""
        schedule = problem.schedule
        return schedule.global_samples(self.global_batch) if self.together else schedule.samples

    def worker_meeting(self, worker: int, shard: int) -> Path:
        """Where a worker and a shard find each other."""
        return self.folder / f"worker-{worker}-shard-{shard}"

    def shard_meeting(self, shard: int) -> Path:
        """Where the leading shard and another find each other."""
        return self.folder / f"leader-shard-{shard}"

    def piece(self, number: int, shard: int) -> Path:
        """Where a shard keeps its range of the model of a round."""
        return self.folder / f"round-{number:03d}.shard-{shard}.npy"
