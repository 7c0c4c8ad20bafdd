"""Each worker makes steps on a copy of the model, and the copies are averaged every h steps, without a server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from fedcore.comparison.measure.clock import averaging_seconds
from fedcore.comparison.modes.base import InReport, Option
from fedcore.comparison.modes.baseline import GLOBAL_BATCH, Baseline, RoundLog, start_group
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.processes import Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.training import train_averaging
from fedcore.simulation.devices.network import Cost, Network

OUTER: Final = {"outer-lr": Option(0.7), "outer-momentum": Option(0.9)}
"""Of the outer Nesterov optimizer, as in Douillard et al. 2023."""


@dataclass(frozen=True, kw_only=True)
class ModelAveraging(Baseline):
    """One rank for each site.

    outer: options of the optimizer that takes the mean movement for its gradient.
    """

    consequence: ClassVar[str] = "every average needs the model of every rank, so that the run ended"

    outer: Mapping[str, Option] = field(default_factory=dict)

    @property
    def in_report(self) -> InReport:
        return InReport(readers="sites")

    @property
    def options(self) -> Mapping[str, Option]:
        return {**GLOBAL_BATCH, "h": Option(16, least=1), **self.outer}

    def global_batch(self, run: PlannedRun) -> int:
        """By default every worker takes the app's batch size."""
        return int(run.options["global-batch"]) or int(run.config["batch-size"]) * run.sites

    def start(self, run: PlannedRun, workers: Workers) -> tuple[str, ...]:
        start_group(workers, run.site_names, train_averaging, run)
        return run.site_names

    def clock(self, run: PlannedRun, log: RoundLog, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        size, rounds, h = self.global_batch(run), len(log.rounds), int(run.options["h"])
        sent = log.sent_for_each(rounds * math.ceil(schedule.global_steps(size)[1] / h))
        return averaging_seconds(schedule, size, rounds, cost, network, h=h, bytes_per_average=sent)
