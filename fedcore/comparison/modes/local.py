"""Every site alone, as a federated client trains, but with nobody to average with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedcore.comparison.measure.clock import local_seconds
from fedcore.comparison.modes.base import InReport
from fedcore.comparison.modes.baseline import Baseline, RoundLog
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.models import Models
from fedcore.comparison.workers.processes import Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.training import snapshot
from fedcore.comparison.workers.trees import train_site
from fedcore.simulation.devices.network import Cost, Network


@dataclass(frozen=True, kw_only=True)
class Local(Baseline):
    """Each point of the curve is the mean over the sites' own models, each on the test parts of all sites.

    There is no model of the run. What a site's model gives on the site's own test part is in `SiteResult.metrics`: an
    easier test the more the sites differ.
    """

    goes_on: ClassVar[bool] = True
    consequence: ClassVar[str] = "the other sites went on without it"

    @property
    def grows_trees(self) -> bool:
        return True

    @property
    def in_report(self) -> InReport:
        return InReport(alone=True, readers="nobody")

    def start(self, run: PlannedRun, workers: Workers) -> tuple[str, ...]:
        for site, name in enumerate(run.site_names):
            workers.start(name, train_site, run, site)
        return run.site_names

    def clock(self, run: PlannedRun, log: RoundLog, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        return local_seconds(schedule, len(log.rounds), cost, network)

    def round_steps(self, run: PlannedRun, schedule: Schedule) -> float:
        return schedule.mean_own_steps

    def models(self, run: PlannedRun, log: RoundLog, number: int) -> Models:
        present = log.rounds[number - 1]
        return {site: snapshot(run.folder / name, number) for site, name in enumerate(log.names) if name in present}
