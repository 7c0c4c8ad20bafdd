"""Sentences on models that are not what their mode can do, or have learnt nothing.

They are facts of these runs, which the differences between last models do not show: a metric that was better on the
way, a model without finite numbers, a metric next to that of a model that looks at no example, a loss that stands
still.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from fedcore.comparison.judging import LOSS
from fedcore.comparison.report.chance import ChanceLevel, chance_of
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import JudgedMetric, Runs, decimal, listed_names
from fedcore.comparison.results import CurvePoint, RunResult, number_of
from fedcore.monitoring.run_record import metric_like

_FALL: Final = 0.25
"""A fall is named if it takes this share of what the best model of the run had gained."""
_LITTLE: Final = 0.25
"""So is a mode that gained less than this share of what the best one did over a model that looks at no example."""
_STILL: Final = 0.01
"""A loss that changes by less than this share of itself stands still."""


def instability(comparison: Comparison, runs: Runs, metric: JudgedMetric) -> tuple[str, ...]:
    """All that there is to say, by kind and mode."""
    return (
        *(text for label, of in runs.items() if (text := _diverged(label, of, metric))),
        *(text for label, of in runs.items() if (text := _fall(label, of, metric))),
        *_near_chance(comparison, runs, metric),
        *(text for label, of in runs.items() if (text := _still(label, of))),
    )


def _diverged(label: str, runs: Sequence[RunResult], metric: JudgedMetric) -> str:
    seeds = [run.seed for run in runs if any(not math.isfinite(value) for value in _finals(run, metric))]
    if not seeds:
        return ""
    return f"{label} diverged{_with(seeds, runs)}: its last model has a {metric.name} or a loss that is not finite."


def _finals(run: RunResult, metric: JudgedMetric) -> Iterator[float]:
    names = {metric.name, *([loss] if (loss := metric_like(run.metrics, LOSS)) else [])}
    yield from (value for name in names if (value := number_of(run.metrics, name)) is not None)


def _fall(label: str, runs: Sequence[RunResult], metric: JudgedMetric) -> str:
    falls = {run.seed: fall for run in runs if (fall := _fallen(run, metric)) is not None}
    if not falls:
        return ""
    seed, (best, last) = max(falls.items(), key=lambda item: metric.sign * (item[1][0][1] - item[1][1]))
    with_seed = f" with seed {seed}" if len(runs) > 1 else ""
    others = f", and less with {len(falls) - 1} more of {len(runs)} seeds" if len(falls) > 1 else ""
    unit = " %" if metric.percent else ""
    return (
        f"{label} fell{with_seed} from {metric.name} {metric.form(best[1])}{unit} in round {best[0]} to "
        f"{metric.form(last)}{unit} in its last round{others}; the intervals are wider for it."
    )


def _fallen(run: RunResult, metric: JudgedMetric) -> tuple[tuple[int, float], float] | None:
    """Round and value of the best model, and the last value; None if the last model is about as good."""
    known = _known(run, metric)
    if len(known) < 3 or known[-1][0] != run.curve[-1].round:
        return None
    best, last = max(known, key=lambda pair: metric.sign * pair[1]), known[-1][1]
    return (best, last) if metric.sign * (best[1] - last) > _least_fall(run, metric, known) else None


def dip(runs: Sequence[RunResult], metric: JudgedMetric) -> float:
    """By how much models of these runs got worse in the second half of their rounds, the most of all; 0 if none did.

    The last model may as well be one of those, which seeds whose last models are good do not show.
    """
    return max((fall for run in runs if (fall := _late_fall(run, metric))), default=0.0)


def _late_fall(run: RunResult, metric: JudgedMetric) -> float:
    known = _known(run, metric)
    if len(known) < 3:
        return 0.0
    best, worst_fall = -math.inf, 0.0
    for number, value in known:
        best = max(best, metric.sign * value)
        if 2 * number > run.curve[-1].round:
            worst_fall = max(worst_fall, best - metric.sign * value)
    return worst_fall if worst_fall > _least_fall(run, metric, known) else 0.0


def _known(run: RunResult, metric: JudgedMetric) -> list[tuple[int, float]]:
    """Rounds and values, as far as there are finite ones."""
    values = ((point.round, metric.at(point)) for point in run.curve)
    return [(number, value) for number, value in values if value is not None and math.isfinite(value)]


def _least_fall(run: RunResult, metric: JudgedMetric, known: Sequence[tuple[int, float]]) -> float:
    """What is no fall but the noise of a curve: a part of what was gained, or what so many test examples may show."""
    values = [metric.sign * value for _, value in known]
    gained = max(values) - (values[0] if known[0][0] == 0 else min(values))
    examples = sum(site.examples for site in run.sites)
    return max(_FALL * gained, 2 * math.sqrt(0.5 / examples) if metric.percent and examples else 0.0)


def _near_chance(comparison: Comparison, runs: Runs, metric: JudgedMetric) -> Iterator[str]:
    base, finals = chance_of(metric.name, comparison), metric.finals(runs)
    if base is None or not finals:
        return
    level = ChanceLevel.of(comparison) if metric.percent else None
    gains = {label: metric.sign * (spread.mean - base) for label, spread in finals.items()}
    chance = f"chance is {metric.form(level.uniform)} %, the majority class" if level else "chance is"
    chance += f" {metric.form(base)}{' %' if level else ''}"
    least = _LITTLE * max(0.0, *gains.values())

    def is_near(gain: float) -> bool:
        return gain < least or max(gains.values()) <= 0

    for label, gain in gains.items():
        if is_near(gain):
            yield f"{label} ends at {metric.format_spread(finals[label])} {metric.name}; {chance}."
            continue
        ends = {run.seed: end for run in runs[label] if (end := metric.at(run)) is not None}
        lost = {seed: end for seed, end in ends.items() if is_near(metric.sign * (end - base))}
        if lost:
            worst = min(lost.values(), key=lambda end: metric.sign * end)
            end_text = f"{metric.form(worst)}{' %' if metric.percent else ''}"
            at_worst = " at worst" if len(lost) > 1 else ""
            yield f"{label} ends at {metric.name} {end_text}{_with(list(lost), runs[label])}{at_worst}; {chance}."


def _still(label: str, runs: Sequence[RunResult]) -> str:
    losses = [_first_and_last(run.curve) for run in runs]
    if not losses or not all(pair and abs(pair[1] - pair[0]) < _STILL * abs(pair[0]) for pair in losses):
        return ""
    first, last = next(pair for pair in losses if pair)
    return (
        f"In {label} the training loss stands still: {decimal(first)} in the first round, {decimal(last)} in the last."
    )


def _first_and_last(curve: Sequence[CurvePoint]) -> tuple[float, float] | None:
    known = [point.train_loss for point in curve if point.train_loss is not None]
    return (known[0], known[-1]) if len(known) > 1 and all(map(math.isfinite, known)) else None


def _with(seeds: Sequence[int], runs: Sequence[RunResult]) -> str:
    if len(runs) == 1:
        return ""
    return f" with seed{'s' if len(seeds) > 1 else ''} {listed_names([str(seed) for seed in seeds])}"
