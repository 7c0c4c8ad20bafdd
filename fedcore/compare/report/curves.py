"""Figures with one line for each mode: the last metric against what it took, and against a swept value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from fedcore.compare.report.document import Comparison
from fedcore.compare.report.drawing import (
    Drawing,
    Look,
    file_name,
    format_axis,
    label_lines,
    looks,
    percent_axis,
    titled,
)
from fedcore.compare.report.summary import (
    Format,
    Metric,
    Spread,
    best_points,
    count,
    duration,
    finished,
    size,
)
from fedcore.compare.results import Point, RunResult

CURVES, SWEEPS = "curves", "sweeps"
# A scale of powers of ten, where the costliest mode takes this many times what the cheapest takes.
_LOGARITHMIC = 20
_MARGINS = {"left": 0.14, "right": 0.66, "bottom": 0.15, "top": 0.97}
# An axis begins below all but this share of the values after the first round: what is interesting lies there.
_CUT = 0.2


@dataclass(frozen=True, slots=True)
class Line:
    """One mode's curve, means over the seeds at each evaluated model. low, high: one standard deviation away."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A quantity that the metric is drawn against."""

    name: str
    label: str
    value: Callable[[Point], float | None]
    form: Format
    caption: str = ""


AXES = (
    Against(name="samples", label="examples trained on", value=lambda point: point.samples, form=count),
    Against(
        name="bytes",
        label="bytes up and down, per worker",
        value=lambda point: point.bytes_up + point.bytes_down,
        form=size,
        caption="A mode that sends nothing is a level line at its last value.",
    ),
    Against(
        name="seconds",
        label="seconds of training, measured here",
        value=lambda point: point.seconds,
        form=duration,
        caption="On this machine, over its loopback, evaluation and start left out.",
    ),
    Against(
        name="simulated-seconds",
        label="simulated seconds",
        value=lambda point: point.simulated_seconds,
        form=duration,
        caption="On the machines and links of the network model.",
    ),
    Against(name="rounds", label="rounds", value=lambda point: point.round, form=count),
)


def curve_drawings(comparison: Comparison) -> list[Drawing]:
    """One drawing for each entry of AXES that has data."""
    metric = Metric.of(comparison)
    if metric is None:
        return []
    styles = looks(comparison.labels)
    runs = best_points(comparison)
    drawings = []
    for against in AXES:
        lines = {label: line for label, of in runs.items() if (line := mean_line(of, metric, against.value))}
        if not lines:
            continue
        drawings.append(
            Drawing(
                name=f"{file_name(metric.name)}-{against.name}",
                section=CURVES,
                title=f"{titled(metric.name)} against {against.label}",
                caption=f"Mean over the seeds; band: one standard deviation. {against.caption}".strip(),
                height=_height(len(lines)),
                draw=partial(_draw_curves, lines=lines, styles=styles, metric=metric, against=against),
            )
        )
    return drawings


def mean_line(runs: Sequence[RunResult], metric: Metric, x: Callable[[Point], float | None]) -> Line | None:
    """The mean of the runs' curves, point by point up to the end of the shortest; None if nothing is known.

    Where x is not known to the end, the first model's alone would be no curve.
    """
    if any(run.curve and x(run.curve[-1]) is None for run in runs):
        return None
    found = []
    for points in zip(*(run.curve for run in runs), strict=False):
        where = Spread.of(x(point) for point in points)
        value = Spread.of(map(metric.at, points))
        if where is not None and value is not None and math.isfinite(value.mean):
            sd = value.sd or 0.0
            found.append((where.mean, value.mean, value.mean - sd, value.mean + sd))
    return Line(*zip(*found, strict=True)) if found else None


def sweep_drawings(comparison: Comparison) -> list[Drawing]:
    """One drawing for each swept key: the last metric against its values."""
    metric = Metric.of(comparison)
    if metric is None:
        return []
    styles = looks(comparison.labels)
    drawings = []
    for key in comparison.sweeps:
        lines = {label: _swept(comparison, label, key, metric) for label in comparison.labels}
        lines = {label: line for label, line in lines.items() if line}
        if len({value for line in lines.values() for value, _ in line}) > 1:
            drawings.append(
                Drawing(
                    name=f"sweep-{file_name(key)}",
                    section=SWEEPS,
                    title=f"Last {metric.name} against {key}",
                    caption="Mean over the seeds; bars: one standard deviation. "
                    "Of several values of another key, the best is shown.",
                    height=_height(len(lines)),
                    draw=partial(_draw_sweep, lines=lines, styles=styles, metric=metric, key=key),
                )
            )
    return drawings


def _height(lines: int) -> float:
    return max(3.1, 1.0 + 0.2 * lines)


def _draw_curves(
    figure: Figure, *, lines: Mapping[str, Line], styles: Mapping[str, Look], metric: Metric, against: Against
) -> None:
    axes = figure.add_subplot()
    figure.subplots_adjust(**_MARGINS)
    ends = [line.x[-1] for line in lines.values() if line.x[-1] > 0]
    logarithmic = bool(ends) and max(ends) > _LOGARITHMIC * min(ends)
    for label, line in lines.items():
        if line.x[-1] <= 0 < len(ends):
            axes.axhline(line.y[-1], color=styles[label].color, linestyle=styles[label].dash, linewidth=1.2)
        else:
            _draw_line(axes, line, styles[label], positive=logarithmic)
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=against.form is count))
    format_axis(axes, against.form)
    axes.set_xlabel(against.label)
    _metric_axis(axes, metric, lines)
    label_lines(figure, axes, {label: line.y[-1] for label, line in lines.items()}, styles)


def _draw_line(axes: Axes, line: Line, look: Look, *, positive: bool) -> None:
    rows = list(zip(line.x, line.y, line.low, line.high, strict=True))
    x, y, low, high = zip(*(row for row in rows if row[0] > 0 or not positive), strict=True)
    axes.plot(x, y, **look.line, markevery=[len(x) - 1])
    if low != high:
        axes.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)


def _metric_axis(axes: Axes, metric: Metric, lines: Mapping[str, Line]) -> None:
    later = sorted(value for line in lines.values() for value in (line.y[1:] or line.y))
    ends = [line.y[-1] for line in lines.values()]
    cut = int(_CUT * len(later))
    if metric.sign > 0:
        low, high = min(later[cut], *ends), max(line_high for line in lines.values() for line_high in line.high)
    else:
        low, high = later[0], max(later[-1 - cut], *ends)
    room = 0.06 * (high - low) or 0.01
    axes.set_ylim(low - room, high + room)
    if metric.percent:
        percent_axis(axes)
    axes.set_ylabel(f"{metric.name}, test examples of all sites")


def _swept(comparison: Comparison, label: str, key: str, metric: Metric) -> list[tuple[object, Spread]]:
    """The best last metric for each value of the key, in ascending order."""
    groups: dict[object, dict[tuple[object, ...], list[RunResult]]] = {}
    for run in finished(comparison.runs):
        if run.mode == label and key in run.point:
            other = tuple(item for item in run.point.items() if item[0] != key)
            groups.setdefault(run.point[key], {}).setdefault(other, []).append(run)
    found = []
    for value, settings in groups.items():
        spreads = [spread for runs in settings.values() if (spread := metric.final(runs)) is not None]
        finite = [spread for spread in spreads if math.isfinite(spread.mean)]
        if finite:
            found.append((value, max(finite, key=metric.rank)))
    return sorted(found, key=lambda item: item[0] if isinstance(item[0], int | float) else 0)


def _draw_sweep(
    figure: Figure,
    *,
    lines: Mapping[str, list[tuple[object, Spread]]],
    styles: Mapping[str, Look],
    metric: Metric,
    key: str,
) -> None:
    axes = figure.add_subplot()
    figure.subplots_adjust(**_MARGINS)
    values = list(dict.fromkeys(value for line in lines.values() for value, _ in line))
    if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        values.sort(key=lambda value: float(str(value)))
    places = {value: index for index, value in enumerate(values)}
    for label, line in lines.items():
        x = [places[value] for value, _ in line]
        errors = [spread.sd or 0.0 for _, spread in line]
        axes.errorbar(x, [spread.mean for _, spread in line], errors, **styles[label].line, capsize=2, elinewidth=1)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xmargin(0.06)
    axes.set_xlabel(key)
    axes.set_ylabel(f"last {metric.name}")
    if metric.percent:
        percent_axis(axes)
    label_lines(figure, axes, {label: line[-1][1].mean for label, line in lines.items()}, styles)
