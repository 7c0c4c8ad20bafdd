"""Runs of as many steps: of the runs of one seed, all train until they have made as many as the one with the most."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedcore.comparison.run import PlannedRun
from fedcore.comparison.workers.models import START_SECONDS
from fedcore.comparison.workers.problem import Problem
from fedcore.comparison.workers.processes import ReportSink, WorkerReport, Workers
from fedcore.errors import ConfigurationError
from fedcore.run.settings import ROUNDS_KEY


class StepsOfRounds(WorkerReport):
    """Steps of one worker in one round of each run, mean over the workers; None if the mode does not say."""

    steps: tuple[float | None, ...]


def at_equal_steps(runs: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
    """The same runs with as many rounds as make equal steps, to within half a round.

    Reads the app's data in a process of its own. Raises ConfigurationError for a mode whose steps nobody counts.
    """
    return with_rounds(runs, _steps_of_each(runs))


def with_rounds(runs: Sequence[PlannedRun], steps: Sequence[float]) -> tuple[PlannedRun, ...]:
    """The runs with the number of rounds that comes closest to the most steps that one of the same seed makes.

    Args:
        steps: of a round of each.
    """
    totals = [count * int(run.config[ROUNDS_KEY]) for run, count in zip(runs, steps, strict=True)]
    most = {run.seed: 0.0 for run in runs}
    for run, total in zip(runs, totals, strict=True):
        most[run.seed] = max(most[run.seed], total)
    return tuple(
        replace(run, config={**run.config, ROUNDS_KEY: max(int(run.config[ROUNDS_KEY]), round(most[run.seed] / count))})
        for run, count in zip(runs, steps, strict=True)
    )


def _steps_of_each(runs: Sequence[PlannedRun]) -> list[float]:
    with (
        tempfile.TemporaryDirectory(prefix="fedcore-steps-") as folder,
        Workers(Path(folder), runs[0].environment()) as workers,
    ):
        (report,) = workers.call("steps", report_steps, tuple(runs), silence=START_SECONDS)
    assert isinstance(report, StepsOfRounds)  # noqa: S101 - it reports nothing else
    unknown = dict.fromkeys(run.label for run, count in zip(runs, report.steps, strict=True) if not count)
    if unknown:
        raise ConfigurationError(
            f"--budget steps: {', '.join(unknown)} does not say how many steps a round has (`Mode.round_steps`)",
            check="unknown-steps",
        )
    return [count or 0.0 for count in report.steps]


def report_steps(report: ReportSink, runs: tuple[PlannedRun, ...]) -> None:
    """In the worker."""
    report(StepsOfRounds(steps=tuple(run.mode.round_steps(run, Problem.of(run).schedule) for run in runs)))
