"""Figures of one aspect each: the split, the sites, staleness, the cost of privacy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedcore.comparison.modes import in_report
from fedcore.comparison.report.document import Comparison, SiteSplit
from fedcore.comparison.report.drawing import (
    INK,
    MUTED,
    NOTE,
    Drawing,
    Hover,
    Look,
    looks,
    percent_axis,
    short,
    titled,
    write_notes,
)
from fedcore.comparison.report.summary import (
    Format,
    JudgedMetric,
    Spread,
    best_points,
    duration,
    listed_names,
    per_worker,
)
from fedcore.comparison.results import RunResult
from fedcore.monitoring.formatting import size

_LEFT = 0.29
_NOTES_LEFT = 0.04
_SITES_NAMED = 4  # so many are counted instead
_ROWS_TALL = 5.0  # inches that the rows of sites may take, however many there are
_SWATCHES = 12  # with more labels than this, a scale of colours instead of a list
_MOST_BARS = 40  # ages of updates; what is older is added to the last bar


def detail_drawings(comparison: Comparison) -> list[Drawing]:
    """The drawings that have data."""
    drawings = [_split(comparison), _sites(comparison), _staleness(comparison), privacy_drawing(comparison)]
    return [drawing for drawing in drawings if drawing is not None]


def label_names(split: Sequence[SiteSplit]) -> list[str]:
    """All labels of the split, numbers in ascending order."""
    names = {name for site in split for name in site.labels or {}}
    return sorted(names, key=lambda name: (not name.lstrip("-").isdigit(), int(name) if name.isdigit() else 0, name))


def _split(comparison: Comparison) -> Drawing | None:
    split = [site for site in comparison.split if site.labels]
    if not split:
        return None
    return Drawing(
        name="split",
        section="data",
        title="Labels of the training examples, by site",
        caption=f"Partition {comparison.partition}, of the first seed."
        if comparison.partition
        else "Of the first seed.",
        height=1.35 + min(max(0.3 * min(len(split), 10), 0.18 * len(split)), _ROWS_TALL),
        draw=partial(_draw_split, split=split, labels=label_names(split)),
    )


def _draw_split(figure: Figure, *, split: Sequence[SiteSplit], labels: Sequence[str]) -> list[Hover]:
    axes = figure.add_subplot()
    height = figure.get_size_inches()[1]
    figure.subplots_adjust(left=0.2, right=0.96, bottom=0.48 / height, top=1 - 0.72 / height)
    colors = mpl.colormaps["cividis"].resampled(max(2, len(labels)))
    left = [0] * len(split)
    hovers: list[Hover] = []
    for index, label in enumerate(labels):
        widths = [(site.labels or {}).get(label, 0) for site in split]
        axes.barh(
            range(len(split)),
            widths,
            left=left,
            color=colors(index),
            height=0.78,
            label=label,
            linewidth=0.3,
            edgecolor=colors(index),
        )
        hovers += _bar_hovers(axes, split, label, left, widths)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    every = math.ceil(len(split) / 30)
    axes.set_yticks(range(0, len(split), every), [site.site for site in split][::every])
    axes.set_ylim(len(split) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("training examples")
    if len(labels) <= _SWATCHES:
        columns = math.ceil(len(labels) / 2) if len(labels) > 6 else len(labels)
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, frameon=False, handlelength=1, handleheight=1,
            columnspacing=1.2, title="label", alignment="left", borderaxespad=0.2, fontsize=8, title_fontsize=8,
        )  # fmt: skip
    else:
        scale = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, len(labels) - 1), colors)
        legend = figure.add_axes((0.2, 1 - 0.32 / height, 0.5, 0.1 / height))
        bar = figure.colorbar(scale, cax=legend, orientation="horizontal")
        bar.set_ticks([0, len(labels) - 1], labels=[labels[0], labels[-1]])
        legend.set_title("label", fontsize=8, loc="left", pad=3)
    return hovers


def _bar_hovers(
    axes: Axes, split: Sequence[SiteSplit], label: str, left: Sequence[int], widths: Sequence[int]
) -> Iterator[Hover]:
    """One label's parts of all bars."""
    for row, (site, start, width) in enumerate(zip(split, left, widths, strict=True)):
        if width:
            text = f"{site.site}: {width} of label {label}"
            yield Hover(axes=axes, x=(start, start + width), y=(row - 0.39, row + 0.39), text=text)


def _sites(comparison: Comparison) -> Drawing | None:
    metric = JudgedMetric.of(comparison)
    every = by_site(comparison, metric) if metric else {}
    spreads = {label: finite for label, sites in every.items() if (finite := _finite(sites))}
    if not spreads or metric is None:
        return None
    absent = {label: [site for site in sites if site not in spreads.get(label, {})] for label, sites in every.items()}
    notes = [
        f"Left out: {label} at {listed_names(sites) if len(sites) < _SITES_NAMED else f'{len(sites)} sites'}, where "
        f"its {metric.name} is not finite."
        for label, sites in absent.items()
        if sites
    ]
    return Drawing(
        name="sites",
        section="data",
        title=f"{titled(metric.name)} of the last model, by site",
        caption=f"A dot is a site{', its mean over the seeds' if len(comparison.seeds) > 1 else ''}; the stroke is the "
        "mean of the sites. Each site has its own test examples; in local, also its own model.",
        height=0.75 + 0.32 * len(spreads) + NOTE * len(notes),
        draw=partial(_draw_sites, spreads=spreads, styles=looks(comparison.labels), metric=metric, notes=notes),
    )


def by_site(comparison: Comparison, metric: JudgedMetric) -> dict[str, dict[str, Spread]]:
    """A metric of the last models, by mode and site; modes for which it is unknown are left out."""
    spreads: dict[str, dict[str, Spread]] = {}
    for label, runs in best_points(comparison).items():
        for name in dict.fromkeys(site.site for run in runs for site in run.sites):
            spread = Spread.of(metric.at(site) for run in runs for site in run.sites if site.site == name)
            if spread is not None:
                spreads.setdefault(label, {})[name] = spread
    return spreads


def _finite(sites: Mapping[str, Spread]) -> dict[str, Spread]:
    return {name: spread for name, spread in sites.items() if math.isfinite(spread.mean)}


def _draw_sites(
    figure: Figure,
    *,
    spreads: Mapping[str, Mapping[str, Spread]],
    styles: Mapping[str, Look],
    metric: JudgedMetric,
    notes: Sequence[str],
) -> list[Hover]:
    axes = figure.add_subplot()
    height = figure.get_size_inches()[1]
    below = write_notes(figure, notes, _NOTES_LEFT)
    figure.subplots_adjust(left=_LEFT, right=0.96, bottom=below + 0.48 / height, top=1 - 0.1 / height)
    for row, (label, sites) in enumerate(spreads.items()):
        values = [spread.mean for spread in sites.values()]
        look = styles[label]
        axes.plot([min(values), max(values)], [row, row], color=look.color, linewidth=1, alpha=0.6)
        axes.plot(
            values, [row] * len(values), look.marker, color=look.color, markersize=5, alpha=0.75, markeredgewidth=0
        )
        axes.plot([sum(values) / len(values)], [row], "|", color=INK, markersize=12, markeredgewidth=1.4)
    axes.set_yticks(range(len(spreads)), [short(label) for label in spreads])
    axes.tick_params("y", labelcolor=INK)
    axes.set_ylim(len(spreads) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{metric.name} on the test examples of a site")
    if metric.percent:
        percent_axis(axes, "x")
    return [
        Hover.at(axes, spread.mean, row, f"{label}, {site}: {metric.format_spread(spread)}")
        for row, (label, sites) in enumerate(spreads.items())
        for site, spread in sites.items()
    ]


def _staleness(comparison: Comparison) -> Drawing | None:
    runs = {label: of for label, of in best_points(comparison).items() if any(run.staleness is not None for run in of)}
    if not runs:
        return None
    return Drawing(
        name="staleness",
        section="staleness",
        title="Staleness of the updates",
        caption="Left: what a bound limits (dashed). With a parameter server, steps by which a worker was ahead of the "
        "slowest one when it read the model; in federated-async, models made since the one that a client trained from. "
        "Right: updates of others that reached the model before its own did.",
        height=0.55 + 1.15 * len(runs),
        draw=partial(_draw_staleness, runs=runs, styles=looks(comparison.labels)),
    )


def _draw_staleness(
    figure: Figure, *, runs: Mapping[str, Sequence[RunResult]], styles: Mapping[str, Look]
) -> list[Hover]:
    hovers: list[Hover] = []
    grid = figure.subplots(len(runs), 2, squeeze=False)
    height = figure.get_size_inches()[1]
    figure.subplots_adjust(left=0.12, right=0.97, bottom=0.45 / height, top=1 - 0.28 / height, hspace=0.75, wspace=0.25)
    for row, (label, of) in enumerate(runs.items()):
        known = [run.staleness for run in of if run.staleness is not None]
        for axes, ages in zip(grid[row], ([one.clocks for one in known], [one.updates for one in known]), strict=True):
            shares = age_shares(ages)
            axes.bar(list(shares), list(shares.values()), width=0.85, color=styles[label].color, linewidth=0)
            hovers += [
                Hover(
                    axes=axes, x=(age - 0.4, age + 0.4), y=(0, share), text=f"{age}: {100 * share:.1f} % of the updates"
                )
                for age, share in shares.items()
            ]
            axes.set_xlim(-0.6, max(shares, default=0) + 0.6 if max(shares, default=0) > 3 else 4.6)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10]))
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axes.grid(visible=False, axis="x")
        bound = known[0].bound
        if bound is not None and math.isfinite(bound):
            grid[row][0].set_xlim(right=max(grid[row][0].get_xlim()[1], bound + 1))
            grid[row][0].axvline(bound + 0.5, color=MUTED, linestyle="--", linewidth=1)
        grid[row][0].set_title(label.replace("\n", " "), fontsize=8, loc="left", pad=3)
    grid[-1][0].set_xlabel("steps ahead of the slowest, or models in between")
    grid[-1][1].set_xlabel("updates in between")
    return hovers


def age_shares(histograms: Sequence[Mapping[int, int]]) -> dict[int, float]:
    """Share of all updates by age, over several runs; the last bar also counts everything older."""
    counts: Counter[int] = Counter()
    for histogram in histograms:
        for age, number in histogram.items():
            counts[min(age, _MOST_BARS)] += number
    total = counts.total() or 1
    return {age: counts[age] / total for age in sorted(counts)}


def privacy_drawing(comparison: Comparison) -> Drawing | None:
    """The federated modes side by side; None if there is nothing to compare."""
    runs = {label: of for label, of in best_points(comparison).items() if in_report(of[0].kind).protection}
    metric = JudgedMetric.of(comparison)
    if metric is None or len({run.kind for of in runs.values() for run in of}) < 2:
        return None
    last = {label: metric.final(of) for label, of in runs.items()}
    absent = [label for label, spread in last.items() if spread is not None and not math.isfinite(spread.mean)]
    notes = [f"Left out: {label}, whose last {metric.name} is not finite." for label in absent]
    return Drawing(
        name="privacy",
        section="privacy",
        title="What the federated modes reach and take",
        caption="Federated training with and without protection"
        + ("; the line is one standard deviation." if len(comparison.seeds) > 1 else "."),
        height=0.35 + 3 * (0.42 + 0.24 * len(runs)) + NOTE * len(notes),
        draw=partial(_draw_privacy, runs=runs, metric=metric, styles=looks(comparison.labels), notes=notes),
    )


def _draw_privacy(
    figure: Figure,
    *,
    runs: Mapping[str, Sequence[RunResult]],
    metric: JudgedMetric,
    styles: Mapping[str, Look],
    notes: Sequence[str],
) -> tuple[Hover, ...]:
    """Every bar has its value next to it."""
    reached = f"last {metric.name}" + (", %" if metric.percent else "")
    panels: list[tuple[str, dict[str, Spread | None], Format]] = [
        (reached, {k: metric.final(v) for k, v in runs.items()}, metric.form),
        ("bytes of training up and down, per worker", {k: Spread.of(map(_bytes, v)) for k, v in runs.items()}, size),
        ("seconds of training", {k: Spread.of(run.seconds for run in v) for k, v in runs.items()}, duration),
    ]
    grid = figure.subplots(3, 1)
    height = figure.get_size_inches()[1]
    below = write_notes(figure, notes, _NOTES_LEFT)
    figure.subplots_adjust(left=_LEFT, right=0.84, bottom=below + 0.1 / height, top=1 - 0.28 / height, hspace=0.5)
    for axes, (title, spreads, label_of) in zip(grid, panels, strict=True):
        for row, (label, spread) in enumerate(spreads.items()):
            if spread is None or not math.isfinite(spread.mean):
                continue
            axes.barh(row, spread.mean, xerr=spread.sd or None, height=0.7, color=styles[label].color, ecolor=INK)
            axes.annotate(
                label_of(spread.mean), (spread.mean + (spread.sd or 0), row), xytext=(4, 0),
                textcoords="offset points", verticalalignment="center", fontsize=8, annotation_clip=False,
            )  # fmt: skip
        axes.set_title(title, loc="left", fontsize=8, color=MUTED, pad=3)
        axes.set_yticks(range(len(spreads)), [short(label) for label in spreads])
        axes.tick_params("y", labelcolor=INK)
        axes.set_ylim(len(spreads) - 0.5, -0.5)
        drawn = [spread.mean for spread in spreads.values() if spread and math.isfinite(spread.mean)]
        axes.set_xlim(left=min([0.0, *drawn]))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.grid(visible=False)
    return ()


def _bytes(run: RunResult) -> float | None:
    up, down = per_worker(run.bytes_up), per_worker(run.bytes_down)
    return None if up is None or down is None else up + down
