"""Checks the secure sums of a comparison's runs against plain means, in a worker that makes the extra rounds.

A secure run with a plain one of the same options and seed is compared with that; of the others, those of the first
seed are compared with an extra round, and so is the last sum of each mode's first seed. What was checked is kept in
the run's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from pydantic import TypeAdapter
from pydantic_core import to_json

from fedcore.comparison.measure.sum_checks import PlainRounds, SumVerdict, Which, check_sum, last_gap
from fedcore.comparison.results import RunResult, SumCheck
from fedcore.comparison.run import INITIAL_FILE, MODEL_FILE, PlannedRun
from fedcore.comparison.workers.models import START_SECONDS
from fedcore.comparison.workers.processes import ReportSink, WorkerReport, Workers
from fedcore.errors import AppError, EnvironmentFailure, RunFailed
from fedcore.flower.grid.training_means import FOLDER, TrainingMean
from fedcore.run.settings import JobSettings
from fedcore.simulation.workers.executor import InlineExecutor
from fedcore.system.files import write_file

_FILE: Final = "sum-checks.json"
_CHECKS: Final = TypeAdapter(tuple[SumCheck, ...])
_NO_MEAN: Final = "the models of its clients have no weighted mean to compare with"

Pair: TypeAlias = tuple[PlannedRun, PlannedRun | None, tuple[Which, ...]]
"""A secure run, the plain run that it is compared with, and which of its sums are checked."""


def check_runs(runs: Sequence[PlannedRun], results: Sequence[RunResult]) -> tuple[SumCheck, ...]:
    """Every check that the runs allow, in their order."""
    finished = [
        run
        for run, result in zip(runs, results, strict=True)
        if result.status == "finished" and not result.losses and run.mode.in_report.protection
    ]
    return tuple(check for pair in pairs(finished) for check in _checks(*pair))


def pairs(runs: Sequence[PlannedRun]) -> Iterator[Pair]:
    """What is compared with what, of the federated runs that finished."""
    plain = {_key(run): run for run in runs if run.mode.in_report.protection == "plain"}
    first: set[object] = set()
    for run in runs:
        if run.mode.in_report.protection != "secure" or run.settings.get("asynchrony") != "none":
            continue
        mode = run.label, tuple(run.point.items())
        other, begins = plain.get(_key(run)), mode not in first
        first.add(mode)
        if other is not None or begins:
            yield run, other, ("first", "last") if begins else ("first",)


def _key(run: PlannedRun) -> object:
    """What a secure run and its plain one have in common."""
    return run.label.removeprefix(run.mode.name), run.seed, tuple(run.point.items())


def _checks(run: PlannedRun, plain: PlannedRun | None, which: tuple[Which, ...]) -> tuple[SumCheck, ...]:
    label = "" if plain is None else plain.label
    known = run.folder / _FILE
    if known.is_file():
        checks = _CHECKS.validate_json(known.read_bytes())
        if any(check.plain == label for check in checks) or not label:
            return checks
    checks = _checked(run, plain, which)
    write_file(known, to_json(checks, indent=1, inf_nan_mode="strings") + b"\n")
    return checks


def _checked(run: PlannedRun, plain: PlannedRun | None, which: tuple[Which, ...]) -> tuple[SumCheck, ...]:
    unknown = SumCheck(mode=run.label, seed=run.seed, point=run.point, round=1, status="unknown")
    if not _mean_file(run, "first").is_file():
        return (replace(unknown, reason=_NO_MEAN),)
    silence = START_SECONDS + 2 * run.sites * float(run.settings["train-seconds"])
    try:
        with Workers(run.folder, run.environment()) as workers:
            (report,) = workers.call(
                "plain-round",
                _check,
                run,
                plain.folder if plain else None,
                plain.label if plain else "",
                which,
                silence=silence,
            )
    except (RunFailed, EnvironmentFailure) as error:
        return (replace(unknown, reason=f"the extra round failed: {error}"),)
    assert isinstance(report, _SumReport)  # noqa: S101 - it reports nothing else
    checks = list(report.checks)
    if plain is not None and checks:
        checks[0] = _with_last_models(checks[0], run, plain)
    return tuple(checks)


def _with_last_models(check: SumCheck, run: PlannedRun, plain: PlannedRun) -> SumCheck:
    gap = last_gap(run.folder / MODEL_FILE, plain.folder / MODEL_FILE, run.folder / INITIAL_FILE)
    if gap is None:
        return check
    return replace(check, last_tensor=gap.tensor, last_difference=gap.difference, last_change=gap.change)


class _SumReport(WorkerReport):
    """What the worker found."""

    checks: tuple[SumCheck, ...]


def _check(report: ReportSink, run: PlannedRun, plain: Path | None, label: str, which: tuple[Which, ...]) -> None:
    """In the worker.

    Args:
        plain: the folder of the plain run, and label: its own.
    """
    logging.getLogger("flwr").setLevel(logging.ERROR)
    settings = JobSettings.from_mapping(run.settings)
    checks = []
    for one in which:
        if not _mean_file(run, one).is_file():
            continue
        mean = TrainingMean.load(_mean_file(run, one))
        file = None if plain is None or one == "last" else plain / FOLDER / "first.safetensors"
        other = TrainingMean.load(file) if file is not None and file.is_file() else None
        with InlineExecutor(app=run.app, clients=run.sites) as executor:
            rounds = PlainRounds(app=run.app, run_config=dict(run.config), settings=settings, executor=executor)
            try:
                verdict = check_sum(mean, other, rounds, which=one)
            except AppError as error:
                verdict = SumVerdict(status="unknown", reason=f"the extra round failed: {error}", rounds=rounds.count)
        if verdict is not None:
            checks.append(as_check(verdict, mean, which=one, mode=run.label, seed=run.seed, plain=label))
    report(_SumReport(checks=tuple(replace(check, point=run.point) for check in checks)))


def as_check(
    verdict: SumVerdict, mean: TrainingMean, *, which: Which, mode: str, seed: int, plain: str = ""
) -> SumCheck:
    """A verdict on a mean, as a report has it.

    Args:
        plain: label of the run that it may have been compared with.
    """
    gap = verdict.gap
    return SumCheck(
        mode=mode,
        seed=seed,
        round=mean.request.server_round,
        status=verdict.status,
        plain=plain if verdict.compared else "",
        reason=verdict.reason,
        tensor=gap.tensor if gap else "",
        difference=gap.difference if gap else None,
        bound=gap.bound if gap else None,
        change=gap.change if gap else None,
        by="norm" if which == "last" else "element",
        own_difference=verdict.own,
        extra_rounds=verdict.rounds,
    )


def _mean_file(run: PlannedRun, which: Which) -> Path:
    return run.folder / FOLDER / f"{which}.safetensors"
