"""The runs of a comparison, one line for each mode and point of a sweep: means and spreads over the seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedcore.compare.report.document import Comparison
from fedcore.compare.results import RunResult
from fedcore.wire import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation. sd: None for a single value. n: how many values."""

    mean: float
    sd: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that are known; None where there are none. A value that is not finite stays one."""
        known = [float(value) for value in values if value is not None]
        if not known:
            return None
        n = len(known)
        mean = sum(known) / n
        sd = math.sqrt(sum((value - mean) ** 2 for value in known) / (n - 1)) if n > 1 else None
        return cls(mean=mean, sd=sd, n=n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One mode at one point of a sweep, over its finished runs.

    point: {} without a sweep. finished, failed: numbers of runs; failed ones are in no mean. lost: finished runs that
    lost a worker; they are in the means. accuracy, loss: of the last model. best_accuracy: of any model on the way.
    seconds, wall_seconds, simulated_seconds: as in RunResult. bytes_up, bytes_down, steps: mean over a run's workers.
    samples: of all workers together; None where privacy forbids to count them.
    """

    mode: str
    kind: str
    point: Mapping[str, Scalar]
    finished: int
    failed: int
    lost: int
    accuracy: Spread | None
    best_accuracy: Spread | None
    loss: Spread | None
    samples: Spread | None
    steps: Spread | None
    seconds: Spread | None
    wall_seconds: Spread | None
    simulated_seconds: Spread | None
    bytes_up: Spread | None
    bytes_down: Spread | None

    @property
    def name(self) -> str:
        """The mode, with the point of the sweep."""
        return f"{self.mode} ({point_text(self.point)})" if self.point else self.mode


def summarize(comparison: Comparison) -> tuple[Summary, ...]:
    """In the order of the modes, each one's points in the order of their runs."""
    return tuple(
        _summary(mode.kind, runs)
        for mode in comparison.modes
        for runs in points_of(run for run in comparison.runs if run.mode == mode.label).values()
    )


def best_points(comparison: Comparison) -> dict[str, tuple[RunResult, ...]]:
    """Finished runs by mode; of a sweep, those of the point with the best mean of the last metric."""
    metric = metric_of(comparison)
    best = {}
    for mode in comparison.modes:
        found = points_of(run for run in finished(comparison.runs) if run.mode == mode.label)
        if found:
            best[mode.label] = max(found.values(), key=lambda runs: _rank(runs, metric))
    return best


def points_of(runs: Iterable[RunResult]) -> dict[tuple[tuple[str, Scalar], ...], tuple[RunResult, ...]]:
    """Runs by their point of the sweep, in the order of their first appearance."""
    found: dict[tuple[tuple[str, Scalar], ...], tuple[RunResult, ...]] = {}
    for run in runs:
        key = tuple(run.point.items())
        found[key] = (*found.get(key, ()), run)
    return found


def finished(runs: Iterable[RunResult]) -> tuple[RunResult, ...]:
    """Those that ended with a model."""
    return tuple(run for run in runs if run.status == "finished")


def metric_of(comparison: Comparison) -> str:
    """What the models are judged by: "accuracy", or "loss" where no run has an accuracy."""
    return "accuracy" if any(run.accuracy is not None for run in comparison.runs) else "loss"


def final(runs: Iterable[RunResult], metric: str) -> Spread | None:
    """The metric of the last models."""
    return Spread.of(run.accuracy if metric == "accuracy" else run.loss for run in runs)


def per_worker(values: Mapping[str, int]) -> float | None:
    """Mean over the workers; None without workers."""
    return sum(values.values()) / len(values) if values else None


def samples_of(run: RunResult) -> int | None:
    """Examples trained on; with differential privacy their number is private."""
    return None if run.privacy is not None else run.samples


def point_text(point: Mapping[str, Scalar]) -> str:
    """As it would be written after --set."""
    return ", ".join(f"{key}={value}" for key, value in point.items())


def _rank(runs: tuple[RunResult, ...], metric: str) -> float:
    spread = final(runs, metric)
    if spread is None or math.isnan(spread.mean):
        return -math.inf
    return spread.mean if metric == "accuracy" else -spread.mean


def _summary(kind: str, runs: tuple[RunResult, ...]) -> Summary:
    done = finished(runs)
    return Summary(
        mode=runs[0].mode,
        kind=kind,
        point=runs[0].point,
        finished=len(done),
        failed=len(runs) - len(done),
        lost=sum(bool(run.losses) for run in done),
        accuracy=final(done, "accuracy"),
        best_accuracy=Spread.of(_best(run) for run in done),
        loss=final(done, "loss"),
        samples=Spread.of(samples_of(run) for run in done),
        steps=Spread.of(per_worker(run.steps) for run in done),
        seconds=Spread.of(run.seconds for run in done),
        wall_seconds=Spread.of(run.wall_seconds for run in done),
        simulated_seconds=Spread.of(run.simulated_seconds for run in done),
        bytes_up=Spread.of(per_worker(run.bytes_up) for run in done),
        bytes_down=Spread.of(per_worker(run.bytes_down) for run in done),
    )


def _best(run: RunResult) -> float | None:
    return max((point.accuracy for point in run.curve if point.accuracy is not None), default=None)
