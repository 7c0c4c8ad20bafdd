"""What has to be known of an app before its comparison begins, found out in a process of its own."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedcore.compare.measuring import measure_cost
from fedcore.compare.modes import ChosenMode
from fedcore.compare.network import Cost, Network
from fedcore.compare.problem import Problem
from fedcore.compare.report.document import SiteSplit
from fedcore.compare.run import ModeRun, worker_name
from fedcore.compare.workers import ReportSink, Workers
from fedcore.data.types import Split
from fedcore.errors import AppError, ConfigurationError, FedcoreError
from fedcore.training.engines.batches import TrainingData

# A large data set may have to be read from a slow disk.
_SILENCE_SECONDS = 900.0
_FOUND, _REFUSED = "found", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was found.

    refusal: why the modes that train the app's model themselves cannot; "" where they can. split: of the data over the
    sites; empty where it cannot be known. cost: of computation, None without a network.
    """

    refusal: str
    split: tuple[SiteSplit, ...] = ()
    cost: Cost | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(
            refusal=value["refusal"],
            split=tuple(SiteSplit(**site) for site in value["split"]),
            cost=Cost(**value["cost"]) if value["cost"] else None,
        )

    def allows(self, chosen: ChosenMode) -> bool:
        """Whether the app can be trained in this mode."""
        return not self.refusal or chosen.mode.any_app

    def check(self, modes: Sequence[ChosenMode]) -> None:
        """Raise ConfigurationError that names every mode that the app cannot be trained in."""
        refused = [mode.label for mode in modes if not self.allows(mode)]
        if refused:
            raise ConfigurationError(f"--modes {', '.join(refused)}: {self.refusal}")


def take_survey(run: ModeRun) -> Survey:
    """Import the app and read its data as `run` would, in a worker process.

    Raises AppError where the app or its data cannot be read.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fedcore-survey-") as folder,
        Workers(Path(folder), run.environment()) as workers,
    ):
        workers.start("survey", _survey, run)
        *found, ending = workers.events(silence=_SILENCE_SECONDS)
    if ending.data["exitcode"]:
        # Its log goes with the folder; where the app's code stumbled is in the traceback alone.
        raise AppError(
            f"{run.app.name} cannot be compared: {ending.data['reason']}\n{ending.data['traceback']}".rstrip()
        )
    (report,) = found
    if report.kind == _REFUSED:
        raise AppError(f"{run.app.name} cannot be compared: {report.data['reason']}")
    return Survey.from_json(report.data)


def _survey(report: ReportSink, run: ModeRun) -> None:
    """In the worker."""
    try:
        problem = Problem.load(run.app, config=run.config, sites=run.sites)
    except ConfigurationError as error:
        report(_FOUND, Survey(refusal=str(error)).to_json())
        return
    try:
        split = tuple(_site(problem, site) for site in range(run.sites))
        cost = _cost(problem, run.network) if run.network is not None else None
    except FedcoreError as error:
        report(_REFUSED, {"reason": str(error)})
    else:
        report(_FOUND, Survey(refusal="", split=split, cost=cost).to_json())


def _site(problem: Problem, site: int) -> SiteSplit:
    training, test = problem.training(site), problem.test(site)
    return SiteSplit(
        site=worker_name(site),
        training=len(training),  # type: ignore[arg-type]
        test=len(test),  # type: ignore[arg-type]
        labels=_labels(training),
    )


def _labels(examples: TrainingData) -> dict[str, int] | None:
    """Examples by label, where each has one that is a whole number."""
    if not isinstance(examples, Split) or examples.y.ndim != 1 or not np.issubdtype(examples.y.dtype, np.integer):
        return None
    return {str(label): count for label, count in sorted(Counter(examples.y.tolist()).items())}


def _cost(problem: Problem, network: Network) -> Cost:
    """What the network model says of computation, and measurements for what it leaves open."""
    if network.step is not None and network.example is not None:
        return Cost(step=network.step, example=network.example)
    measured = measure_cost(problem)
    return Cost(
        step=measured.step if network.step is None else network.step,
        example=measured.example if network.example is None else network.example,
    )
