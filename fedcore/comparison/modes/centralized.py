"""All data in one place, trained by one process, or by several that divide every batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from fedcore.comparison.measure.clock import centralized_seconds
from fedcore.comparison.modes.base import InReport, Option
from fedcore.comparison.modes.baseline import GLOBAL_BATCH, Baseline, RoundLog, start_group
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.processes import Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.server_app import train_centralized
from fedcore.simulation.devices.network import Cost, Network
from fedcore.wire.base import Scalar

POOLED: Final = "pooled"
"""The worker that has all the data."""


@dataclass(frozen=True, kw_only=True)
class Centralized(Baseline):
    """The union of what the sites of a synchronous mode would take, step by step; its bytes are zero.

    An app that does its own training is driven by its own ServerApp.
    """

    any_app: ClassVar[bool] = True
    consequence: ClassVar[str] = "nobody else has the data, so that the run ended"

    @property
    def options(self) -> Mapping[str, Option]:
        return {**GLOBAL_BATCH, "ranks": Option(1, least=1)}

    def divides_batches(self, options: Mapping[str, Scalar]) -> bool:
        return int(options["ranks"]) > 1

    @property
    def grows_trees(self) -> bool:
        return True

    @property
    def in_report(self) -> InReport:
        return InReport(pooled=True, readers="pooled")

    def start(self, run: PlannedRun, workers: Workers) -> tuple[str, ...]:
        ranks = int(run.options["ranks"])
        names = (POOLED,) if ranks == 1 else tuple(f"{POOLED}-{rank + 1}" for rank in range(ranks))
        start_group(workers, names, train_centralized, run)
        return names

    def clock(self, run: PlannedRun, log: RoundLog, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        ranks = len(log.names)
        return centralized_seconds(schedule, self.global_batch(run), len(log.rounds), cost, ranks=ranks)
