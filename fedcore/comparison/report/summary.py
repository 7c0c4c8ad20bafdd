"""Means and spreads over the seeds for each mode and point of a sweep, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fedcore.comparison.design.budget import Budget
from fedcore.comparison.design.equal_budgets import Amount, Equal, amounts, limits, point_at
from fedcore.comparison.modes import in_report
from fedcore.comparison.modes.base import Readers
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.results import CurvePoint, RunResult, SiteResult, Value, number_of
from fedcore.comparison.target import Reached, Target

NONE = "–"
Format: TypeAlias = Callable[[float], str]
Runs: TypeAlias = Mapping[str, Sequence[RunResult]]
"""Finished runs by mode, of a sweep those of one point."""
PointKey: TypeAlias = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation.

    sd: None for a single value.
    n: how many values.
    """

    mean: float
    sd: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the known values; None if there are none. The mean is not finite if one of them is not."""
        known = [float(value) for value in values if value is not None]
        if not known:
            return None
        n = len(known)
        mean = sum(known) / n
        sd = math.sqrt(sum((value - mean) ** 2 for value in known) / (n - 1)) if n > 1 else None
        return cls(mean=mean, sd=sd, n=n)


def percent(value: float) -> str:
    """A fraction in percent with two decimals, without the percent sign."""
    return f"{100 * value:.2f}"


def decimal(value: float) -> str:
    """Four decimals; four significant digits from 100 on."""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def count(value: float) -> str:
    """A count, rounded, with thousands separators."""
    return f"{value:,.0f}"


def duration(value: float) -> str:
    """Seconds, in a suitable unit."""
    if value < 0.001:
        return f"{1e6 * value:.1f} µs"
    if value < 0.1:
        return f"{1000 * value:.1f} ms"
    if value < 120:
        return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def mean(spread: Spread | None, form: Format) -> str:
    """The mean alone, as text."""
    if spread is None:
        return NONE
    return form(spread.mean) if math.isfinite(spread.mean) else "not finite"


def mean_sd(spread: Spread | None, form: Format) -> str:
    """The mean, with the standard deviation if there are several values."""
    text = mean(spread, form)
    if spread is None or spread.sd is None or not math.isfinite(spread.sd):
        return text
    return f"{text} ± {form(spread.sd)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedMetric:
    """What models are judged by.

    name: as in RunResult and Point.
    form: as people read it.
    percent: shares of one.
    sign: 1 if more is better, else -1.
    """

    name: str
    form: Format
    sign: int
    percent: bool = False

    @classmethod
    def of(cls, comparison: Comparison) -> JudgedMetric | None:
        """The one of the comparison; None if there is none to judge by."""
        judged_by = comparison.judged_by
        return cls.named(judged_by.name, comparison, sign=1 if judged_by.better == "max" else -1) if judged_by else None

    @classmethod
    def named(cls, name: str, comparison: Comparison, *, sign: int = 1) -> JudgedMetric:
        """Any metric; an accuracy is shown in percent, unless an app reports something else under its name."""
        values = [number_of(point.metrics, name) for run in comparison.runs for point in run.curve]
        shares = "acc" in name.lower() and all(value is None or not value > 1 for value in values)
        return cls(name=name, form=percent if shares else decimal, sign=sign, percent=shares)

    @property
    def unit(self) -> str:
        """Of a difference."""
        return f"points of {self.name}" if self.percent else f"of {self.name}"

    @property
    def column(self) -> str:
        """The head of its column."""
        return f"{self.name} %" if self.percent else self.name

    def at(self, one: RunResult | CurvePoint | SiteResult) -> float | None:
        """The value at a point of a curve, of a run's last model, or at a site."""
        return number_of(one.metrics, self.name)

    def evaluated(self, point: CurvePoint) -> bool:
        """Whether a model on the way has a value."""
        return self.at(point) is not None

    def final(self, runs: Iterable[RunResult]) -> Spread | None:
        """Over the last models of the runs."""
        return Spread.of(map(self.at, runs))

    def finals(self, runs: Runs) -> dict[str, Spread]:
        """Over the last models by mode, if known and finite."""
        known = {label: self.final(of) for label, of in runs.items()}
        return {label: spread for label, spread in known.items() if spread is not None and math.isfinite(spread.mean)}

    def own(self, run: RunResult) -> float | None:
        """The last model on the test examples of one site, mean over the sites, as far as it is known."""
        known = [value for site in run.sites if (value := self.at(site)) is not None]
        return sum(known) / len(known) if known else None

    def rank(self, spread: Spread | None) -> float:
        """Larger for better models; what is unknown or not finite comes last."""
        return self.sign * spread.mean if spread is not None and math.isfinite(spread.mean) else -math.inf

    def best(self, run: RunResult) -> float | None:
        """Of any model on the way."""
        known = [value for point in run.curve if (value := self.at(point)) is not None and math.isfinite(value)]
        return max(known, key=lambda value: self.sign * value, default=None)

    def format_spread(self, spread: Spread) -> str:
        """With its standard deviation and unit."""
        return mean_sd(spread, self.form) + (" %" if self.percent else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTarget:
    """What it took to the first model that was as good as wanted, over the runs that had one.

    reached: how many had.
    round, seconds, virtual_seconds, samples, bytes: as in `Reached`; None if no run had one, or no such clock.
    """

    reached: int
    runs: int
    round: Spread | None
    seconds: Spread | None
    virtual_seconds: Spread | None
    samples: Spread | None = None
    bytes: Spread | None = None

    @classmethod
    def of(cls, targets: Sequence[Reached | None]) -> ToTarget:
        """Of what each run had."""
        known = [one for one in targets if one is not None]
        return cls(
            reached=len(known),
            runs=len(targets),
            round=Spread.of(one.round for one in known),
            seconds=Spread.of(one.seconds for one in known),
            virtual_seconds=Spread.of(one.virtual_seconds for one in known),
            samples=Spread.of(one.samples for one in known),
            bytes=Spread.of(one.bytes for one in known),
        )

    def format_spread(self, spread: Spread | None, form: Format) -> str:
        """A mean over all runs; where some did not reach the target, there is none, and how many did is said."""
        return mean_sd(spread, form) if self.reached == self.runs else f"reached by {self.reached} of {self.runs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBudget:
    """The last models of a mode at or before a budget that it shares with all other modes.

    metric: what models are judged by.
    round, samples, steps, seconds: at that model, as in `CurvePoint`; seconds by the clock that counts.
    """

    metric: Spread | None
    round: Spread | None
    samples: Spread | None
    steps: Spread | None
    seconds: Spread | None

    @classmethod
    def of(cls, points: Sequence[CurvePoint], metric: JudgedMetric, seconds: Amount) -> AtBudget:
        """Of one point for each run."""
        return cls(
            metric=Spread.of(map(metric.at, points)),
            round=Spread.of(point.round for point in points),
            samples=Spread.of(point.samples for point in points),
            steps=Spread.of(point.steps for point in points),
            seconds=Spread.of(map(seconds, points)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One mode at one point of a sweep, over its finished runs.

    point: {} without a sweep.
    finished, failed: numbers of runs; failed ones are in no mean.
    lost: finished runs that lost a worker; they are in the means.
    readers: who can read what a single site sends.
    epsilon: the most that a run spent; None without differential privacy.
    trials_epsilon: the most that the tuning trials of a run spent in addition; None without privacy or trials.
    metrics: of the last model, by name; of a metric with several numbers each has its own, "name[0]" and so on.
    own: of the last model by the metric that models are judged by, on the test examples of one site, mean over the
        sites; in `local`, of the site's own model.
    best: of any model on the way.
    seconds, start_seconds, wall_seconds, simulated_seconds: as in RunResult.
    processor_seconds: of all workers and servers of a run together; None if nobody counted them.
    joules: an estimate of the energy that these take: times the watts of a core; None if those were not given.
    bytes_up, bytes_down, steps: mean over a run's workers; all_bytes: the same of `all_bytes_up` and `all_bytes_down`
        together, None if nobody counted them.
    samples: of all workers together; None if they were not counted, or are private.
    reported_examples: as in `RunResult`.
    to_target: of the comparison's target, None without one.
    at_equal: by "examples", "steps" and "seconds", what the mode has where all have taken equally much of it; without
        what nobody counts.
    """

    mode: str
    kind: str
    point: Mapping[str, Value]
    finished: int
    failed: int
    lost: int
    readers: Readers
    epsilon: float | None
    metrics: Mapping[str, Spread]
    own: Spread | None
    best: Spread | None
    samples: Spread | None
    steps: Spread | None
    seconds: Spread | None
    wall_seconds: Spread | None
    simulated_seconds: Spread | None
    bytes_up: Spread | None
    bytes_down: Spread | None
    reported_examples: Spread | None = None
    to_target: ToTarget | None = None
    start_seconds: Spread | None = None
    all_bytes: Spread | None = None
    processor_seconds: Spread | None = None
    joules: Spread | None = None
    at_equal: Mapping[Equal, AtBudget] = field(default_factory=dict)
    trials_epsilon: float | None = None

    @property
    def runs(self) -> str:
        """How many runs finished, and how many did not."""
        return f"{self.finished}, {self.failed} failed" if self.failed else str(self.finished)


def summarize(comparison: Comparison) -> tuple[Summary, ...]:
    """One summary for each mode and point, modes in the report's order, points in the order of their runs."""
    metric = JudgedMetric.of(comparison)
    return tuple(
        replace(
            _summary(mode.kind, runs, metric, comparison.target),
            at_equal=at_equal(runs, comparison, metric),
            joules=_joules(runs, comparison.watts),
        )
        for mode in comparison.modes
        for runs in points_of(run for run in comparison.runs if run.mode == mode.label).values()
    )


def _joules(runs: Iterable[RunResult], watts: float | None) -> Spread | None:
    """Processor seconds times the watts of a core; None if either is not known."""
    seconds = [run.processor_seconds for run in finished(runs)]
    return None if watts is None else Spread.of(one * watts for one in seconds if one is not None)


def at_equal(runs: Iterable[RunResult], comparison: Comparison, metric: JudgedMetric | None) -> dict[Equal, AtBudget]:
    """What these runs of one mode have where all runs of the comparison have taken equally much.

    A budget that a run does not count, or that its first round goes beyond, is left out.
    """
    done, known = finished(runs), amounts(comparison.runs)
    if metric is None or not done:
        return {}
    at: dict[Equal, AtBudget] = {}
    for kind, amount in known.items():
        least = limits(comparison.runs, amount)
        if kind == "seconds" and (most := Budget.parse(comparison.budget).seconds):
            least = dict.fromkeys(least, most)
        points = [point_at(run, least.get(run.seed), amount, metric.evaluated) for run in done]
        there = [point for point in points if point is not None]
        if len(there) == len(points):
            at[kind] = AtBudget.of(there, metric, known["seconds"])
    return at


def best_points(comparison: Comparison) -> dict[str, tuple[RunResult, ...]]:
    """Finished runs by mode; of a sweep, those of the point with the best mean of the last metric, or the first."""
    metric = JudgedMetric.of(comparison)
    best = {}
    for label in comparison.labels:
        points = points_of(run for run in finished(comparison.runs) if run.mode == label)
        if points:
            best[label] = max(points.values(), key=lambda runs: metric.rank(metric.final(runs)) if metric else 0.0)
    return best


def points_of(runs: Iterable[RunResult]) -> dict[PointKey, tuple[RunResult, ...]]:
    """Runs by their point of the sweep, in the order of their first appearance."""
    points: dict[PointKey, tuple[RunResult, ...]] = {}
    for run in runs:
        key = tuple(run.point.items())
        points[key] = (*points.get(key, ()), run)
    return points


def finished(runs: Iterable[RunResult]) -> tuple[RunResult, ...]:
    """The runs that ended with a model."""
    return tuple(run for run in runs if run.status == "finished")


def per_worker(values: Mapping[str, int]) -> float | None:
    """The mean over the workers; None if there are none."""
    return sum(values.values()) / len(values) if values else None


def all_bytes(run: RunResult) -> float | None:
    """Of one worker in the whole run, both ways, mean over the workers; None if nobody counted them."""
    up, down = per_worker(run.all_bytes_up), per_worker(run.all_bytes_down)
    return None if up is None or down is None else up + down


def samples_of(run: RunResult) -> int | None:
    """The number of examples trained on; None if nobody counts them, or if they are private."""
    return None if run.privacy is not None else run.samples


def numbers(run: RunResult) -> dict[str, float]:
    """The metrics of the last model, each number of those that have several by itself."""
    values: dict[str, float] = {}
    for name, value in run.metrics.items():
        each = {f"{name}[{i}]": one for i, one in enumerate(value)} if isinstance(value, tuple) else {name: value}
        values.update(each)
    return values


def listed_names(names: Sequence[str]) -> str:
    """As in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def point_text(point: Mapping[str, Value]) -> str:
    """The point as it would be written after --set."""
    return ", ".join(f"{key}={value}" for key, value in point.items())


def _summary(kind: str, runs: tuple[RunResult, ...], metric: JudgedMetric | None, target: Target | None) -> Summary:
    done = finished(runs)
    values = [numbers(run) for run in done]
    spreads = {name: Spread.of(one.get(name) for one in values) for one in values for name in one}
    return Summary(
        mode=runs[0].mode,
        kind=kind,
        point=runs[0].point,
        finished=len(done),
        failed=len(runs) - len(done),
        lost=sum(bool(run.losses) for run in done),
        readers=in_report(kind).readers,
        epsilon=max((run.epsilon_spent for run in done if run.epsilon_spent is not None), default=None),
        trials_epsilon=max((run.trials_epsilon for run in done if run.trials_epsilon is not None), default=None),
        metrics={name: spread for name, spread in spreads.items() if spread is not None},
        own=Spread.of(map(metric.own, done)) if metric else None,
        best=Spread.of(map(metric.best, done)) if metric else None,
        samples=Spread.of(samples_of(run) for run in done),
        reported_examples=Spread.of(run.reported_examples for run in done),
        steps=Spread.of(per_worker(run.steps) for run in done),
        seconds=Spread.of(run.seconds for run in done),
        start_seconds=Spread.of(run.start_seconds for run in done),
        wall_seconds=Spread.of(run.wall_seconds for run in done),
        simulated_seconds=Spread.of(run.simulated_seconds for run in done),
        bytes_up=Spread.of(per_worker(run.bytes_up) for run in done),
        bytes_down=Spread.of(per_worker(run.bytes_down) for run in done),
        all_bytes=Spread.of(map(all_bytes, done)),
        processor_seconds=Spread.of(run.processor_seconds for run in done),
        to_target=ToTarget.of([target.reached(run.curve) for run in done]) if target else None,
    )
