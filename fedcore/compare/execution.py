"""Carry out the runs of a comparison one after another; what has finished is kept, and is not run again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Protocol, TypeAlias

from fedcore.compare.folder import OutFolder
from fedcore.compare.job import PARTITION, CompareJob, plan
from fedcore.compare.report import Comparison, ModeTitle, machine
from fedcore.compare.results import RESULT_FILE, RunResult, stored_precision
from fedcore.compare.run import ModeRun
from fedcore.compare.runner import ModeRunner
from fedcore.compare.survey import Survey, take_survey
from fedcore.errors import FedcoreError
from fedcore.events import EventSink


class Runner(Protocol):
    """What carries out one run; raises FedcoreError or OSError where it cannot."""

    def __call__(self, run: ModeRun, emit: EventSink) -> RunResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """A run that is about to begin.

    number: in the order of execution, from 1 on. seconds_left: of all runs from this one on, None where unknown.
    """

    run: ModeRun
    number: int
    total: int
    seconds_left: float | None


Watch: TypeAlias = Callable[[RunStart], AbstractContextManager[EventSink]]
"""Called before each run; the run's events go to what it opens."""


def carry_out(job: CompareJob, watch: Watch, *, force: bool = False, drop: bool = False) -> Comparison:
    """Carry out what `job` asks for and was not done before; the results stay in its folder.

    force: replace another comparison in the folder, or the same one. drop: leave out the modes that the app cannot be
    trained in. Raises ConfigurationError before the first run for whatever cannot work.
    """
    folder = OutFolder(job.out)
    planned = plan(job)
    folder.check(job, force=force)
    survey = (None if force else folder.survey()) or take_survey(planned[0])
    possible = replace(job, modes=tuple(mode for mode in job.modes if survey.allows(mode))) if drop else job
    survey.check(possible.modes)
    runs = [replace(run, cost=survey.cost) for run in plan(possible)]
    with folder.opened(job, force=force), ModeRunner(job.out) as runner:
        folder.keep_survey(survey)
        results = execute(runs, runner, watch)
    return build_comparison(possible, runs, results, survey)


def execute(runs: Sequence[ModeRun], runner: Runner, watch: Watch) -> tuple[RunResult, ...]:
    """The results of all runs, in their order.

    A run that has finished before keeps its result; one that failed is run again. A run that cannot be carried out is
    a result with status "failed", and the next one begins.
    """
    results = finished(runs)
    for position, (number, run) in enumerate(in_groups(runs), start=1):
        if number in results:
            continue
        start = RunStart(run=run, number=position, total=len(runs), seconds_left=seconds_left(runs, results))
        with watch(start) as emit:
            results[number] = _carry_out(run, runner, emit)
    return tuple(results[number] for number in range(len(runs)))


def finished(runs: Sequence[ModeRun]) -> dict[int, RunResult]:
    """Results that are there already, by the number of their run."""
    found = {}
    for number, run in enumerate(runs):
        if (run.folder / RESULT_FILE).is_file():
            result = RunResult.load(run.folder)
            if result.status == "finished":
                found[number] = result
    return found


def in_groups(runs: Sequence[ModeRun]) -> list[tuple[int, ModeRun]]:
    """The runs with their numbers, those that the same processes can serve one after the other."""
    groups = list(dict.fromkeys(map(_group, runs)))
    return sorted(enumerate(runs), key=lambda numbered: groups.index(_group(numbered[1])))


def _group(run: ModeRun) -> str:
    return run.mode.mode.warm_group(run) or run.mode.label


def _carry_out(run: ModeRun, runner: Runner, emit: EventSink) -> RunResult:
    """One run in a fresh folder; its result is saved there."""
    shutil.rmtree(run.folder, ignore_errors=True)
    run.folder.mkdir(parents=True)
    started = time.monotonic()
    try:
        result = runner(run, emit)
    except (FedcoreError, OSError) as error:
        result = RunResult(
            mode=run.mode.label, kind=run.mode.kind, seed=run.seed, point=run.point, status="failed", reason=str(error)
        )
    result = replace(result, precision=stored_precision(run.folder))
    if not result.wall_seconds:
        result = replace(result, wall_seconds=time.monotonic() - started)
    result.save(run.folder)
    return result


def seconds_left(runs: Sequence[ModeRun], results: Mapping[int, RunResult]) -> float | None:
    """An estimate: a run takes as long as those of its mode did, or else as all did."""
    by_label: dict[str, list[float]] = {}
    for result in results.values():
        by_label.setdefault(result.mode, []).append(result.wall_seconds)
    if not by_label:
        return None
    overall = fmean(seconds for group in by_label.values() for seconds in group)
    left = (run.mode.label for number, run in enumerate(runs) if number not in results)
    return sum(fmean(by_label.get(label, [overall])) for label in left)


def build_comparison(
    job: CompareJob, runs: Sequence[ModeRun], results: Sequence[RunResult], survey: Survey
) -> Comparison:
    """What the report is made from."""
    fixed = {key: values[0] for key, values in job.sweep.items() if len(values) == 1}
    config, settings = job.config(), job.app.settings.to_mapping()
    return Comparison(
        app=job.app.name,
        sites=job.sites,
        partition=str(fixed.get(PARTITION, config.get(PARTITION, ""))),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        run_config={key: fixed.get(key, value) for key, value in config.items()},
        settings={key: fixed.get(key, value) for key, value in settings.items()},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        modes=tuple(ModeTitle(label=mode.label, kind=mode.kind, title=mode.mode.title) for mode in job.modes),
        runs=tuple(results),
        network=job.network,
        cost=runs[0].cost,
        split=survey.split,
    )
