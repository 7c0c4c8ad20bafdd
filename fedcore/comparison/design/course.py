"""The course of a comparison with some of its seeds: trials, what they choose, and the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fedcore.comparison.app_probe import AppFacts
from fedcore.comparison.design.equal_steps import at_equal_steps
from fedcore.comparison.design.trials import Choice, chosen_for, discard_models, trials_of_each
from fedcore.comparison.judging import choose
from fedcore.comparison.plan import CompareJob, plan, plan_trials
from fedcore.comparison.results import RunResult
from fedcore.comparison.run import PlannedRun

Execute: TypeAlias = Callable[[Sequence[PlannedRun]], tuple[RunResult, ...]]
"""Carries out runs that were not carried out before; the results of all, in their order."""


@dataclass(slots=True)
class JobOfSeeds:
    """Carries out all that a job asks for with its seeds.

    trial_seconds: that trials took.
    """

    facts: AppFacts
    execute: Execute
    trial_seconds: float = 0.0

    def carried(self, job: CompareJob, *, first: int = 1) -> tuple[tuple[PlannedRun, ...], tuple[RunResult, ...]]:
        """The runs as they were carried out, and their results.

        Args:
            first: number of the first run, which the folders are named by.
        """
        runs = plan(job, first=first)
        trials = plan_trials(job, first=(first - 1) * trials_of_each(job) + 1)
        choices = self._choices(job, runs, trials) if trials else []
        if choices:
            runs = tuple(choice.run for choice in choices)
        runs = self._budgeted(job, runs)
        results = self.execute(runs)
        if choices:
            results = tuple(
                replace(result, tuned=choice.tuned, trials=choice.trials)
                for result, choice in zip(results, choices, strict=True)
            )
        return runs, results

    def _choices(self, job: CompareJob, runs: Sequence[PlannedRun], trials: Sequence[PlannedRun]) -> list[Choice]:
        judged_by = choose(job.metric, self.facts.metrics)
        assert judged_by is not None  # noqa: S101 - an app with validation data has a loss
        results = self.execute(self._budgeted(job, trials))
        self.trial_seconds += sum(result.wall_seconds for result in results)
        discard_models(trials)
        return [chosen_for(run, trials, results, judged_by) for run in runs]

    def _budgeted(self, job: CompareJob, runs: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
        timed = tuple(replace(run, cost=self.facts.cost) for run in runs)
        return at_equal_steps(timed) if job.budget.changes_runs else timed


def by_mode(
    job: CompareJob, runs: Sequence[PlannedRun], results: Sequence[RunResult]
) -> tuple[tuple[PlannedRun, ...], tuple[RunResult, ...]]:
    """Runs and results of several seeds in the order of `plan`: by mode, by point of the sweep, by seed."""
    labels = [mode.label for mode in job.modes]
    points = list(dict.fromkeys(tuple(run.point.items()) for run in runs))
    pairs = sorted(
        zip(runs, results, strict=True),
        key=lambda pair: (labels.index(pair[0].label), points.index(tuple(pair[0].point.items())), pair[0].seed),
    )
    return tuple(run for run, _ in pairs), tuple(result for _, result in pairs)
