"""Synchronous data parallel training: every step takes the mean of all workers' gradients, round a ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedcore.comparison.measure.clock import allreduce_seconds
from fedcore.comparison.modes.base import InReport, Option
from fedcore.comparison.modes.baseline import GLOBAL_BATCH, Baseline, RoundLog, start_group
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.processes import Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.training import train_together
from fedcore.simulation.devices.network import Cost, Network
from fedcore.wire.base import Scalar

HOOKS = ("none", "fp16", "bf16", "powersgd")


@dataclass(frozen=True, kw_only=True)
class AllReduce(Baseline):
    """One rank for each site, all of them in every step."""

    consequence: ClassVar[str] = "every step needs the gradient of every rank, so that the run ended"

    @property
    def in_report(self) -> InReport:
        return InReport(readers="sites")

    @property
    def options(self) -> Mapping[str, Option]:
        return {**GLOBAL_BATCH, "hook": Option("none", choices=HOOKS)}

    def divides_batches(self, options: Mapping[str, Scalar]) -> bool:
        return True

    def start(self, run: PlannedRun, workers: Workers) -> tuple[str, ...]:
        start_group(workers, run.site_names, train_together, run)
        return run.site_names

    def clock(self, run: PlannedRun, log: RoundLog, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        size, rounds = self.global_batch(run), len(log.rounds)
        sent = log.sent_for_each(rounds * schedule.global_steps(size)[1])
        return allreduce_seconds(schedule, size, rounds, cost, network, bytes_per_step=sent)
