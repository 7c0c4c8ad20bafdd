"""A mode without a server: the first site trains, the others wait."""

from dataclasses import dataclass
from typing import ClassVar

from fedcore.comparison.measure.clock import local_seconds
from fedcore.comparison.modes.baseline import Baseline, RoundLog
from fedcore.comparison.run import PlannedRun, worker_name
from fedcore.comparison.workers.models import Models, everywhere
from fedcore.comparison.workers.processes import Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.training import snapshot, train_alone
from fedcore.simulation.devices.network import Cost, Network


@dataclass(frozen=True, kw_only=True)
class FirstSite(Baseline):
    """The first site trains alone, and everybody uses its model."""

    title: str = "the model of the first site, for everybody"
    consequence: ClassVar[str] = "nobody else trains, so the run ended"

    def start(self, run: PlannedRun, workers: Workers) -> tuple[str, ...]:
        workers.start(worker_name(0), train_alone, run, 0)
        return (worker_name(0),)

    def round_steps(self, run: PlannedRun, schedule: Schedule) -> float:
        return schedule.own_steps(0)[1]

    def clock(self, run: PlannedRun, log: RoundLog, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        return local_seconds(schedule, len(log.rounds), cost, network)

    def models(self, run: PlannedRun, log: RoundLog, number: int) -> Models:
        return everywhere(run, snapshot(run.folder / worker_name(0), number))
