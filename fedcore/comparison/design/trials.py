"""From trials on validation data to the run that is trained on all training data, with what they chose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedcore.comparison.design.tuning import best_trial, trial_of
from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.plan import CompareJob
from fedcore.comparison.results import RunResult, Trial
from fedcore.comparison.run import PlannedRun
from fedcore.wire.base import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What trials chose for one run.

    run: with these values, on all training data.
    tuned: the values.
    trials: all that were tried, in their order.
    """

    run: PlannedRun
    tuned: Mapping[str, Scalar]
    trials: tuple[Trial, ...]


def trials_of_each(job: CompareJob) -> int:
    """How many trials each run has."""
    return math.prod(len(values) for values in job.tuning.values.values()) if job.tuning else 0


def chosen_for(
    run: PlannedRun, trials: Sequence[PlannedRun], results: Sequence[RunResult], judged_by: JudgedBy
) -> Choice:
    """The run with the values that its own trials chose: those of its mode, its seed and its point of the sweep.

    If no trial has a number, the first values are taken, and the run shows what is wrong with them.

    Args:
        results: of all the trials.
    """
    mine = [
        (trial, result)
        for trial, result in zip(trials, results, strict=True)
        if (trial.label, trial.seed) == (run.label, run.seed) and run.point.items() <= trial.point.items()
    ]
    keys = [key for key in mine[0][0].point if key not in run.point]
    records = tuple(trial_of(result, keys, judged_by) for _, result in mine)
    best = best_trial(records, judged_by) or records[0]
    source = mine[records.index(best)][0]
    return Choice(
        run=replace(source, validation=0.0, folder=run.folder, point=run.point),
        tuned=dict(best.point),
        trials=records,
    )


def discard_models(trials: Sequence[PlannedRun]) -> None:
    """Remove what trials trained; their results stay."""
    for trial in trials:
        for path in trial.folder.rglob("*.safetensors"):
            path.unlink()
