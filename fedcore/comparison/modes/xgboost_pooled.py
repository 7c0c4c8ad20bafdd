"""XGBoost itself on the rows of all sites in one place: what somebody would have who could pool them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from fedcore.comparison.modes.base import InReport
from fedcore.comparison.modes.baseline import Baseline, RoundLog, start_group
from fedcore.comparison.modes.centralized import POOLED
from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.processes import Workers
from fedcore.comparison.workers.schedule import Schedule
from fedcore.comparison.workers.trees import train_xgboost
from fedcore.errors import UsageError
from fedcore.simulation.devices.network import Cost, Network


@dataclass(frozen=True, kw_only=True)
class PooledXGBoost(Baseline):
    """Bins, base scores and draws of XGBoost's own; rounds, depth and the like are those of the app.

    It is no measure for the federated mode as `centralized` is, since it differs in the bins as well.
    """

    consequence: ClassVar[str] = "nobody else has the data, so that the run ended"

    @property
    def grows_trees(self) -> bool:
        return True

    def lacks(self, *, trees: bool) -> str:
        if not trees:
            return "XGBoost is compared with apps of boosted trees alone"
        return "" if find_spec("xgboost") else "XGBoost is not installed; pip install xgboost, or leave this mode out"

    @property
    def in_report(self) -> InReport:
        return InReport(readers="pooled")

    def start(self, run: PlannedRun, workers: Workers) -> tuple[str, ...]:
        start_group(workers, (POOLED,), train_xgboost, run)
        return (POOLED,)

    def clock(self, run: PlannedRun, log: RoundLog, schedule: Schedule, cost: Cost, network: Network) -> list[float]:
        raise UsageError("trees have no simulated clock")
