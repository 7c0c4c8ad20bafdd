"""Figures with one line for each mode: the metric against rounds, time or bytes, and against a swept value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.drawing import (
    MOST_CELLS,
    NOTE,
    Drawing,
    Hover,
    Look,
    file_name,
    format_axis,
    label_lines,
    looks,
    percent_axis,
    titled,
    write_notes,
)
from fedcore.comparison.report.summary import (
    NONE,
    Format,
    JudgedMetric,
    Spread,
    best_points,
    count,
    duration,
    finished,
    listed_names,
)
from fedcore.comparison.results import CurvePoint, RunResult
from fedcore.monitoring.formatting import size

CURVES, SWEEPS = "curves", "sweeps"
# A scale of powers of ten, where the costliest mode takes this many times what the cheapest takes.
_LOGARITHMIC = 20
_MARGINS = {"left": 0.155, "right": 0.63, "bottom": 0.15, "top": 0.97}
# As shares of what the best mode gained: how far below the start a curve may get for the axis to hold it, and how far
# the axis goes below the start if one gets further.
_RETAINED, _BELOW = 2.0, 0.25


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """One mode's curve, means over the seeds at each evaluated model.

    low, high: one standard deviation away.
    missing: points that it leaves out, since a seed has no finite value there, or its curve has ended.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAxis:
    """A quantity that the metric is drawn against.

    position: where a point is, in words.
    """

    name: str
    label: str
    position: str
    value: Callable[[CurvePoint], float | None]
    form: Format
    caption: str = ""


AXES = (
    CurveAxis(
        name="samples",
        label="examples trained on",
        position="after {} examples",
        value=lambda point: point.samples,
        form=count,
    ),
    CurveAxis(
        name="bytes",
        label="bytes of training up and down, per worker",
        position="after {}",
        value=lambda point: point.bytes_up + point.bytes_down,
        form=size,
        caption="A mode that sends nothing is a level line at its last value.",
    ),
    CurveAxis(
        name="seconds",
        label="seconds of training, measured here",
        position="after {}",
        value=lambda point: point.seconds,
        form=duration,
        caption="On this machine, without evaluations.",
    ),
    CurveAxis(
        name="simulated-seconds",
        label="simulated seconds",
        position="after {} of the simulated clock",
        value=lambda point: point.simulated_seconds,
        form=duration,
        caption="On the machines and links of the network model, or on simulated devices.",
    ),
    CurveAxis(name="rounds", label="rounds", position="after round {}", value=lambda point: point.round, form=count),
)


def curve_drawings(comparison: Comparison) -> list[Drawing]:
    """One drawing for each entry of AXES that has data."""
    metric = JudgedMetric.of(comparison)
    if metric is None:
        return []
    styles = looks(comparison.labels)
    runs = best_points(comparison)
    drawings = []
    for against in AXES:
        lines = {label: line for label, of in runs.items() if (line := mean_line(of, metric, against.value))}
        if not lines:
            continue
        notes = [*left_out(lines, metric), *_without_line(runs, lines, metric, against)]
        drawings.append(
            Drawing(
                name=f"{file_name(metric.name)}-{against.name}",
                section=CURVES,
                title=f"{titled(metric.name)} against {against.label}",
                caption=f"{_spread(comparison, 'band')}{_reading(against, lines)}{_start(comparison, against)}".strip(),
                height=_height(len(lines)) + NOTE * len(notes),
                draw=partial(
                    _draw_curves,
                    lines=lines,
                    styles=styles,
                    metric=metric,
                    against=against,
                    notes=notes,
                    of="" if comparison.own_evaluation else ", test examples of all sites",
                ),
            )
        )
    return drawings


def _reading(against: CurveAxis, lines: Mapping[str, MeanCurve]) -> str:
    """What the axis takes to read; level lines are explained if there is one."""
    return against.caption if against.name != "bytes" or any(line.x[-1] <= 0 for line in lines.values()) else ""


def _without_line(
    runs: Mapping[str, Sequence[RunResult]], lines: Mapping[str, MeanCurve], metric: JudgedMetric, against: CurveAxis
) -> list[str]:
    """Which modes have values, and none of them finite, in words."""
    return [
        f"Left out: {label}, which has no finite value."
        for label, of in runs.items()
        if label not in lines
        and any(metric.at(point) is not None and against.value(point) is not None for run in of for point in run.curve)
        and all(run.curve and against.value(run.curve[-1]) is not None for run in of)
    ]


def mean_line(
    runs: Sequence[RunResult], metric: JudgedMetric, x: Callable[[CurvePoint], float | None]
) -> MeanCurve | None:
    """The mean of the runs' curves, point by point up to the end of the shortest; None if nothing is known.

    Where x is not known to the end, the first model's alone would be no curve.
    """
    if any(run.curve and x(run.curve[-1]) is None for run in runs):
        return None
    coordinates, missing = [], 0
    for points in zip_longest(*(run.curve for run in runs)):
        known = [point for point in points if point is not None]
        where = Spread.of(x(point) for point in known)
        value = Spread.of(map(metric.at, known))
        if where is None or value is None:
            continue
        if len(known) < len(points) or not math.isfinite(value.mean):
            missing += 1
            continue
        sd = value.sd or 0.0
        coordinates.append((where.mean, value.mean, value.mean - sd, value.mean + sd))
    if not coordinates:
        return None
    means, values, low, high = zip(*coordinates, strict=True)
    return MeanCurve(x=means, y=values, low=low, high=high, missing=missing)


def sweep_drawings(comparison: Comparison) -> list[Drawing]:
    """One drawing for each swept key: the last metric against its values."""
    metric = JudgedMetric.of(comparison)
    if metric is None:
        return []
    styles = looks(comparison.labels)
    drawings = []
    for key in comparison.sweeps:
        every = {label: _swept(comparison, label, key, metric) for label in comparison.labels}
        lines = {
            label: finite
            for label, line in every.items()
            if (finite := [(value, spread) for value, spread in line if math.isfinite(spread.mean)])
        }
        if lines and len({value for line in every.values() for value, _ in line}) > 1:
            notes = _not_finite(every, key, metric)
            drawings.append(
                Drawing(
                    name=f"sweep-{file_name(key)}",
                    section=SWEEPS,
                    title=f"Last {metric.name} against {key}",
                    caption=_spread(comparison, "bars") + "Of several values of another key, the best is shown.",
                    height=_height(len(lines)) + NOTE * len(notes),
                    draw=partial(_draw_sweep, lines=lines, styles=styles, metric=metric, key=key, notes=notes),
                )
            )
    return drawings


def curve_table(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
    """What the curves show, as a table: a row for each round, or for each tenth if there are many."""
    metric = JudgedMetric.of(comparison)
    if metric is None:
        return None
    lines = {label: mean_line(of, metric, lambda point: point.round) for label, of in best_points(comparison).items()}
    values = {label: dict(zip(line.x, line.y, strict=True)) for label, line in lines.items() if line}
    if not values:
        return None
    rounds = sorted({number for line in values.values() for number in line})
    chosen = [number for number in rounds if number in rounds[:: _every(rounds)] or number == rounds[-1]]
    rows = [
        (count(number), *(metric.form(line[number]) if number in line else NONE for line in values.values()))
        for number in chosen
    ]
    return (f"round: {metric.column}", *values), rows


def _every(values: Sequence[object]) -> int:
    """Which ones to take, so that they are not too many."""
    return math.ceil(len(values) / MOST_CELLS)


def _start(comparison: Comparison, against: CurveAxis) -> str:
    """Whether the start is in the seconds of a curve, which is known of every mode or not."""
    if against.name != "seconds":
        return ""
    known = {run.mode: run.start_seconds is not None for run in finished(comparison.runs)}
    if all(known.values()):
        return " Without the start, which the table has."
    absent = [mode for mode, is_known in known.items() if not is_known]
    return f" The start is in the first round of {listed_names(absent)}."


def _spread(comparison: Comparison, drawn: str) -> str:
    """How to read a mean; one seed has no spread."""
    return f"Mean over the seeds; {drawn}: one standard deviation. " if len(comparison.seeds) > 1 else ""


def _height(lines: int) -> float:
    return max(3.1, 1.0 + 0.2 * lines)


def _draw_curves(
    figure: Figure,
    *,
    lines: Mapping[str, MeanCurve],
    styles: Mapping[str, Look],
    metric: JudgedMetric,
    against: CurveAxis,
    notes: Sequence[str],
    of: str,
) -> list[Hover]:
    axes = figure.add_subplot()
    _leave_room(figure, notes)
    ends = [line.x[-1] for line in lines.values() if line.x[-1] > 0]
    logarithmic = bool(ends) and max(ends) > _LOGARITHMIC * min(ends)
    for label, line in lines.items():
        if line.x[-1] <= 0 < len(ends):
            axes.axhline(line.y[-1], color=styles[label].color, linestyle=styles[label].dash, linewidth=1.2)
        else:
            _draw_line(axes, line, styles[label])
    axes.set_xlim(left=0)
    if logarithmic:
        # Level up to the first of all points, so that the first model, at 0, has a place.
        first = min(x for line in lines.values() for x in line.x if x > 0)
        axes.set_xscale("symlog", linthresh=first, linscale=0.4)
        powers = range(math.ceil(math.log10(first)), math.ceil(math.log10(max(ends))))
        axes.xaxis.set_major_locator(FixedLocator([0, *(10.0**power for power in powers)]))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=against.form is count))
    format_axis(axes, against.form)
    axes.set_xlabel(against.label)
    _metric_axis(axes, metric, lines)
    axes.set_ylabel(metric.name + of)
    label_lines(figure, axes, {label: line.y[-1] for label, line in lines.items()}, styles, metric.form)
    return [hover for label, line in lines.items() for hover in _hovers(axes, label, line, metric, against)]


def _leave_room(figure: Figure, notes: Sequence[str]) -> None:
    """Write notes, and set the margins above them."""
    below = write_notes(figure, notes, _MARGINS["left"] / 4)
    figure.subplots_adjust(**{**_MARGINS, "bottom": below + _MARGINS["bottom"] * (1 - below)})


def _hovers(axes: Axes, label: str, line: MeanCurve, metric: JudgedMetric, against: CurveAxis) -> Iterator[Hover]:
    """What each point of a curve is."""
    low, high = axes.get_xlim()
    unit = " %" if metric.percent else ""
    if line.x[-1] <= 0 < high and len(axes.get_lines()) > 1:
        yield Hover(axes=axes, x=(low, high), y=(line.y[-1],) * 2, text=f"{label}: {metric.form(line.y[-1])}{unit}")
        return
    bottom, top = axes.get_ylim()
    last = len(line.x) - 1
    for index, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
        if (index % _every(line.x) == 0 or index == last) and low <= x <= high and bottom <= y <= top:
            spread = f" ± {metric.form(line.high[index] - y)}" if line.high[index] > y else ""
            text = f"{label}: {metric.form(y)}{spread}{unit} {against.position.format(against.form(x))}"
            yield Hover.at(axes, x, y, text)


def _draw_line(axes: Axes, line: MeanCurve, look: Look) -> None:
    axes.plot(line.x, line.y, **look.line, markevery=[len(line.x) - 1])
    if line.low != line.high:
        axes.fill_between(line.x, line.low, line.high, color=look.color, alpha=0.2, linewidth=0)


def _metric_axis(axes: Axes, metric: JudgedMetric, lines: Mapping[str, MeanCurve]) -> None:
    low, high = _axis_ends(lines, metric)
    axes.set_ylim(low, high)
    if metric.percent:
        percent_axis(axes)


def metric_limits(lines: Iterable[MeanCurve], sign: int) -> tuple[float, float]:
    """The whole of all curves with their bands, but for one that gets much further below the start than any gained."""
    curves = list(lines)
    values = [value for line in curves for value in (*line.low, *line.high)]
    best, worst = max(sign * value for value in values), min(sign * value for value in values)
    start = min(sign * line.y[0] for line in curves)
    if worst < start - _RETAINED * (best - start) and best > start:
        worst = start - _BELOW * (best - start)
    low, high = sorted((sign * worst, sign * best))
    return low, high


def _axis_ends(lines: Mapping[str, MeanCurve], metric: JudgedMetric) -> tuple[float, float]:
    low, high = metric_limits(lines.values(), metric.sign)
    if metric.percent:  # a band of a wide spread goes beyond what a share can be
        low, high = max(low, 0.0), min(high, 1.0)
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def left_out(lines: Mapping[str, MeanCurve], metric: JudgedMetric) -> list[str]:
    """Which points have no place in a figure, in words: by mode, those beyond the axis, and those without a value."""
    notes = []
    low, high = _axis_ends(lines, metric)
    unit = " %" if metric.percent else ""
    for label, line in lines.items():
        for number, where in (
            (sum(y < low for y in line.y), f"below {metric.form(low)}{unit}"),
            (sum(y > high for y in line.y), f"above {metric.form(high)}{unit}"),
            (line.missing, "without a finite value of every seed"),
        ):
            if number:
                notes.append(f"Left out: {number} point{'s' if number > 1 else ''} of {label} {where}.")
    return notes


def _swept(comparison: Comparison, label: str, key: str, metric: JudgedMetric) -> list[tuple[object, Spread]]:
    """The best last metric for each value of the key, in ascending order; not finite if none is."""
    groups: dict[object, dict[tuple[object, ...], list[RunResult]]] = {}
    for run in finished(comparison.runs):
        if run.mode == label and key in run.point:
            other = tuple(item for item in run.point.items() if item[0] != key)
            groups.setdefault(run.point[key], {}).setdefault(other, []).append(run)
    points = []
    for value, settings in groups.items():
        spreads = [spread for runs in settings.values() if (spread := metric.final(runs)) is not None]
        if spreads:
            finite = [spread for spread in spreads if math.isfinite(spread.mean)]
            points.append((value, max(finite or spreads, key=metric.rank)))
    return sorted(points, key=lambda item: item[0] if isinstance(item[0], int | float) else 0)


def _not_finite(lines: Mapping[str, Sequence[tuple[object, Spread]]], key: str, metric: JudgedMetric) -> list[str]:
    """Which points of a sweep have no place in its figure, in words."""
    absent = {label: [str(v) for v, spread in line if not math.isfinite(spread.mean)] for label, line in lines.items()}
    return [
        f"Left out: {label} with {key}={listed_names(values)}, whose last {metric.name} is not finite."
        for label, values in absent.items()
        if values
    ]


def _draw_sweep(
    figure: Figure,
    *,
    lines: Mapping[str, list[tuple[object, Spread]]],
    styles: Mapping[str, Look],
    metric: JudgedMetric,
    key: str,
    notes: Sequence[str],
) -> list[Hover]:
    axes = figure.add_subplot()
    _leave_room(figure, notes)
    values = list(dict.fromkeys(value for line in lines.values() for value, _ in line))
    if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        values.sort(key=lambda value: float(str(value)))
    places = {value: index for index, value in enumerate(values)}
    for label, line in lines.items():
        x = [places[value] for value, _ in line]
        errors = [spread.sd or 0.0 for _, spread in line] if any(spread.sd for _, spread in line) else None
        axes.errorbar(x, [spread.mean for _, spread in line], errors, **styles[label].line, capsize=2, elinewidth=1)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xmargin(0.06)
    axes.set_xlabel(key)
    axes.set_ylabel(f"last {metric.name}")
    if metric.percent:
        percent_axis(axes)
    label_lines(figure, axes, {label: line[-1][1].mean for label, line in lines.items()}, styles, metric.form)
    return [
        Hover.at(axes, places[value], spread.mean, f"{label}, {key}={value}: {metric.format_spread(spread)}")
        for label, line in lines.items()
        for value, spread in line
    ]
