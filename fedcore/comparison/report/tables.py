"""Tables of a comparison as text, for the terminal and the documents of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fedcore.comparison.app_evaluation import CLIENTS
from fedcore.comparison.judging import ACCURACY, LOSS, PROBABILITIES
from fedcore.comparison.modes import in_report
from fedcore.comparison.modes.base import Readers
from fedcore.comparison.modes.exposure import EYES, views_of
from fedcore.comparison.report.chance import ChanceLevel
from fedcore.comparison.report.conditions import other_budget
from fedcore.comparison.report.details import by_site
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import (
    NONE,
    Format,
    JudgedMetric,
    Spread,
    Summary,
    best_points,
    count,
    decimal,
    duration,
    mean,
    mean_sd,
    numbers,
    percent,
    point_text,
    summarize,
)
from fedcore.monitoring.formatting import size
from fedcore.monitoring.run_record import metric_like

TextTable: TypeAlias = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Its head, and its rows."""
_CAPTION = (
    "Metrics of the last model {where}{spread}. Seen by: who can read what a single site sends. "
    "Samples: examples trained on, counted there, all workers together. Steps, up, down, all bytes: mean over the "
    "workers. Up and down: bytes of training; all bytes: of the whole run, both ways, with evaluations, polls, keys, "
    "TLS, and the headers of TCP and IP. Seconds: of training on this machine, from when every worker has imported the "
    "app, read its data, made its model and trained with it once; start: what came before that; wall: start, training "
    "and evaluation."
)
_OURS, _APPS = "on the test examples of all sites", "as the app's own evaluation reports them"
_SPREAD = ", mean ± standard deviation over the seeds"
_ALONE = (
    " In {}, the mean of the sites' own models, each on the test examples of all sites. At its own site: the last "
    "model on the test examples of one site, mean over the sites; in {} the site's own model. It is an easier test, "
    "the more the sites differ."
)
_REPORTED = " Reported: what the clients of an app's own loop say, each training once, whatever it repeats."
_ENCODED = " Nobody counted all bytes here; without a network, up and down are the bytes of encoded updates and models."
_READERS: Mapping[Readers, str] = {
    "": NONE, "nobody": "nobody", "server": "the server", "sites": "other sites", "pooled": "all data pooled"
}  # fmt: skip
_PROCESSOR = (
    " Processor: seconds of all workers and servers together, as the operating system counts them, without fedcore's "
    "own evaluation of the models; those of workers that start with the run have their start in them."
)
_ENERGY = (
    " Energy is an estimate: processor seconds times {:g} watts a core; memory, network, idle cores and accelerators "
    "are not in it."
)
_POOLED = " To pool the training data would take {} once, as arrays."
_RUNS = "runs"
_SIMULATED = " Simulated: seconds on the machines and links of the network model, or on simulated devices."


def caption(comparison: Comparison) -> str:
    """What the numbers of the main table are."""
    where, spread = _APPS if comparison.own_evaluation else _OURS, _SPREAD if len(comparison.seeds) > 1 else ""
    text = _CAPTION.format(where=where, spread=spread)
    if alone := ", ".join(_alone(comparison)):
        text += _ALONE.format(alone, alone)
    if any(run.samples is None and run.reported_examples is not None for run in comparison.runs):
        text += _REPORTED
    if not any(run.all_bytes_up for run in comparison.runs):
        text += _ENCODED
    if any(run.processor_seconds is not None for run in comparison.runs):
        text += _PROCESSOR
    if comparison.watts is not None:
        text += _ENERGY.format(comparison.watts)
    if (pooled := pooled_bytes(comparison)) is not None:
        text += _POOLED.format(size(pooled))
    return text + (_SIMULATED if comparison.simulated else "")


def pooled_bytes(comparison: Comparison) -> int | None:
    """What it takes to bring all training data together, once; None if that of a site is not known."""
    sizes = [site.training_bytes for site in comparison.split]
    known = [one for one in sizes if one is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def energy(joules: float) -> str:
    """Joules, in a suitable unit."""
    return f"{joules:.0f} J" if joules < 3600 else f"{joules / 3600:.3g} Wh"


def _alone(comparison: Comparison) -> list[str]:
    """The modes in which each site has a model of its own."""
    return [mode.label for mode in comparison.modes if in_report(mode.kind).alone]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumn:
    """One column of the main table.

    narrow: also on a terminal with little room.
    costs: of the table of costs; the others are of the models.
    """

    title: str
    cell: Callable[[Summary], str]
    narrow: bool = True
    costs: bool = False


def columns(comparison: Comparison, summaries: tuple[Summary, ...]) -> tuple[ReportColumn, ...]:
    """The columns that have data; the first is the mode."""
    failed = any(one.failed for one in summaries)
    result = [ReportColumn(title="mode", cell=lambda one: one.mode)]
    if comparison.sweeps:
        result.append(ReportColumn(title="set", cell=lambda one: point_text(one.point) or NONE))
    result += _metric_columns(comparison)
    result += _budget_columns(comparison)
    result += [
        ReportColumn(title="samples", cell=_samples_cell, narrow=False, costs=True),
        ReportColumn(title="steps", cell=lambda one: mean(one.steps, count), narrow=False, costs=True),
        ReportColumn(title="up", cell=lambda one: mean(one.bytes_up, size), costs=True),
        ReportColumn(title="down", cell=lambda one: mean(one.bytes_down, size), costs=True),
        ReportColumn(title="all bytes", cell=lambda one: mean(one.all_bytes, size), narrow=False, costs=True),
        ReportColumn(
            title="seconds",
            cell=lambda one: mean(one.seconds, duration),
            narrow=not (failed and comparison.simulated),
            costs=True,
        ),
        ReportColumn(title="start", cell=lambda one: mean(one.start_seconds, duration), narrow=False, costs=True),
        ReportColumn(title="wall", cell=lambda one: mean(one.wall_seconds, duration), narrow=False, costs=True),
        ReportColumn(
            title="processor", cell=lambda one: mean(one.processor_seconds, duration), narrow=False, costs=True
        ),
    ]
    if comparison.watts is not None:
        result.append(ReportColumn(title="energy", cell=lambda one: mean(one.joules, energy), costs=True))
    if comparison.simulated:
        result.append(
            ReportColumn(title="simulated", cell=lambda one: mean(one.simulated_seconds, duration), costs=True)
        )
    result += _target_columns(comparison)
    if failed or len(comparison.seeds) > 1:
        result.append(ReportColumn(title=_RUNS, cell=lambda one: one.runs, narrow=failed))
    return tuple(result)


def _samples_cell(one: Summary) -> str:
    """As they were counted; else as the app's clients report them, which says so."""
    if one.samples is None and one.reported_examples is not None:
        return f"{mean(one.reported_examples, count)} reported"
    return mean(one.samples, count)


def _visible_to(one: Summary) -> str:
    if one.readers == "pooled" and one.samples is None:
        return "all it reads"
    spent = f", ε {one.epsilon:.3g}" if one.epsilon is not None else ""
    tuning = f" (trials {one.trials_epsilon:.3g} more)" if one.trials_epsilon is not None else ""
    return _READERS[one.readers] + spent + tuning


def _metric_columns(comparison: Comparison) -> list[ReportColumn]:
    """The metric that models are judged by, and next to it the loss."""
    metric, loss = JudgedMetric.of(comparison), loss_name(comparison)
    result = []
    if metric is not None:
        name, form = metric.name, metric.form
        result.append(ReportColumn(title=metric.column, cell=lambda one: mean_sd(one.metrics.get(name), form)))
        if _alone(comparison):
            own = "at its own site" + (" %" if metric.percent else "")
            result.append(ReportColumn(title=own, cell=lambda one: mean(one.own, form), narrow=False))
    result.append(ReportColumn(title="seen by", cell=_visible_to))
    if loss and (metric is None or loss != metric.name):
        result.append(
            ReportColumn(title=loss, cell=lambda one: mean_sd(one.metrics.get(loss), decimal), narrow=metric is None)
        )

    def further(name: str) -> Callable[[Summary], str]:
        return lambda one: mean_sd(one.metrics.get(name), decimal)

    return result + [ReportColumn(title=name, cell=further(name), narrow=False) for name in _next_to(comparison)]


def _next_to(comparison: Comparison) -> list[str]:
    """What stands next to an accuracy of two classes, where the runs have it."""
    judged_by = comparison.judged_by
    if judged_by is None or judged_by.name != ACCURACY:
        return []
    names = {name for run in comparison.runs for name in run.metrics}
    return [name for name in PROBABILITIES if name in names]


def _budget_columns(comparison: Comparison) -> list[ReportColumn]:
    """What the modes have at equal steps, if their last models are at equal examples; and the other way round."""
    metric, other = JudgedMetric.of(comparison), other_budget(comparison, best_points(comparison))
    if metric is None or other is None:
        return []
    form = metric.form
    title = f"at equal {other}" + (" %" if metric.percent else "")

    def at_budget(one: Summary) -> str:
        if (at := one.at_equal.get(other)) is None:
            return NONE
        words = {"steps": mean(at.steps, count), "examples": mean(at.samples, count)}
        return f"{mean_sd(at.metric, form)} ({words.get(other) or mean(at.seconds, duration)})"

    return [ReportColumn(title=title, cell=at_budget, narrow=False)]


def _target_columns(comparison: Comparison) -> list[ReportColumn]:
    """When a model first was as good as wanted: its round, and the seconds up to it by the clock that counts."""
    if comparison.target is None:
        return []

    def cell(kind: str, form: Format) -> Callable[[Summary], str]:
        def target_cell(one: Summary) -> str:
            return one.to_target.format_spread(getattr(one.to_target, kind), form) if one.to_target else NONE

        return target_cell

    clock = ("simulated", "virtual_seconds") if comparison.simulated else ("seconds", "seconds")
    return [
        ReportColumn(title=f"round of {comparison.target}", cell=cell("round", count)),
        ReportColumn(title=f"{clock[0]} to it", cell=cell(clock[1], duration), narrow=False),
        *(
            [
                ReportColumn(title="examples to it", cell=cell("samples", count), narrow=False),
                ReportColumn(title="bytes to it", cell=cell("bytes", size), narrow=False),
            ]
            if comparison.budget
            else []
        ),
    ]


def loss_name(comparison: Comparison) -> str:
    """Under which name the loss is, "" if there is none."""
    names = {name for run in comparison.runs for name in run.metrics}
    server = {name for run in comparison.runs for name in run.by_server}
    return metric_like(names & server, LOSS) or metric_like(names, LOSS) or ""


def metrics_table(comparison: Comparison) -> TextTable | None:
    """Every metric that the main table leaves out, a row for each and a column for each mode; None if none is.

    Of a sweep, at the value that is the best by the metric that models are judged by.
    """
    judged_by = [comparison.judged_by.name] if comparison.judged_by else []
    main = {loss_name(comparison), *judged_by, *_next_to(comparison)}
    runs = best_points(comparison)
    values = {label: [numbers(run) for run in of] for label, of in runs.items()}
    names = dict.fromkeys(name for each in values.values() for one in each for name in one if name not in main)
    if not names:
        return None
    rows = []
    for name in names:
        form = JudgedMetric.named(name, comparison).form
        cells = (mean_sd(Spread.of(one.get(name) for one in each), form) for each in values.values())
        rows.append((JudgedMetric.named(name, comparison).column, *cells))
    return ("metric", *values), rows


def definition_rows(comparison: Comparison) -> list[tuple[str, str]]:
    """Each metric that the report shows, and what it is in a sentence."""
    server = {name for run in comparison.runs for name in run.by_server}
    names = dict.fromkeys(name for of in best_points(comparison).values() for run in of for name in run.metrics)

    def meaning(name: str) -> str:
        if name in comparison.definitions:
            return comparison.definitions[name]
        own = name.removeprefix(CLIENTS)
        if own in comparison.definitions:
            return f"{comparison.definitions[own]}; as the clients report it"
        if name in server:
            return "what evaluate_fn of the app's ServerApp returns, of the same examples in every mode"
        if comparison.own_evaluation:
            return "what the app's clients report, averaged as its strategy says, by default weighted by test examples"
        return "the app does not say what it is: Metric(..., meaning=...), or [tool.fedcore.metrics] in pyproject.toml"

    first = comparison.judged_by.name if comparison.judged_by else ""
    return [(name, meaning(name)) for name in sorted(names, key=lambda name: name != first)]


def main_table(comparison: Comparison) -> TextTable:
    """Header and rows, one row for each mode and point."""
    summaries = summarize(comparison)
    chosen = columns(comparison, summaries)
    return tuple(column.title for column in chosen), [tuple(column.cell(one) for column in chosen) for one in summaries]


def known_columns(comparison: Comparison, summaries: tuple[Summary, ...]) -> list[ReportColumn]:
    """The columns of the main table in which any row has something."""
    return [
        column
        for column in columns(comparison, summaries)
        if any(column.cell(one) != NONE for one in summaries) or not summaries
    ]


def part_tables(comparison: Comparison) -> dict[str, TextTable]:
    """The main table in two, "models" and "costs", each with the columns that name its rows; without an empty one."""
    summaries = summarize(comparison)
    known = known_columns(comparison, summaries)
    names, rest = known[: row_names(comparison)], known[row_names(comparison) :]
    parts = {"models": [one for one in rest if not one.costs], "costs": [one for one in rest if one.costs]}
    return {
        name: (
            tuple(one.title for one in (*names, *part)),
            [tuple(one.cell(row) for one in (*names, *part)) for row in summaries],
        )
        for name, part in parts.items()
        if part
    }


def exposure_table(comparison: Comparison) -> TextTable | None:
    """What each mode shows to whom; None if none is known. The last model is left out: it goes to all that get it."""
    rows: list[tuple[str, ...]] = [
        (mode.label, *views) for mode in comparison.modes if (views := views_of(in_report(mode.kind))) is not None
    ]
    return (("mode", *EYES), rows) if rows else None


def row_names(comparison: Comparison) -> int:
    """How many of the first columns say which row it is."""
    return 2 if comparison.sweeps else 1


def sites_table(comparison: Comparison, most: int = 10) -> TextTable | None:
    """What models are judged by, by mode and site; None without data, or if the table would be too wide."""
    metric = JudgedMetric.of(comparison)
    if metric is None:
        return None
    spreads = by_site(comparison, metric)
    names = list(dict.fromkeys(site for sites in spreads.values() for site in sites))
    if not 0 < len(names) <= most:
        return None
    rows = [(label, *(mean_sd(by.get(name), metric.form) for name in names)) for label, by in spreads.items()]
    return (f"mode: {metric.column}", *names), rows


def sums_table(comparison: Comparison, most: int = 10) -> TextTable | None:
    """In how many sums each site's updates were, by mode; None if that is the same for all sites, or too wide."""
    runs = {label: [run.sums for run in of if run.sums] for label, of in best_points(comparison).items()}
    names = list(dict.fromkeys(name for of in runs.values() for sums in of for name in sums))
    uneven = any(len(set(sums.values())) > 1 for of in runs.values() for sums in of)
    if not uneven or len(names) > most:
        return None
    rows = [
        (label, *(mean_sd(Spread.of(sums.get(name) for sums in of), "{:.3g}".format) for name in names))
        for label, of in runs.items()
        if of
    ]
    return ("mode: sums", *names), rows


def loss_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Mode, seed, worker, round, consequence, seconds: a row for each worker that was lost."""
    return [
        (run.mode, str(run.seed), loss.worker, str(loss.round), loss.consequence, duration(loss.seconds))
        for run in comparison.runs
        for loss in run.losses
    ]


def failure_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Mode, seed, values, reason: a row for each run without a model."""
    return [
        (run.mode, str(run.seed), point_text(run.point) or NONE, run.reason)
        for run in comparison.runs
        if run.status == "failed"
    ]


def settings_rows(comparison: Comparison) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What was compared, and with which settings; then the settings that are as the app or fedcore has them."""
    rows = [
        ("app", comparison.app),
        ("sites", str(comparison.sites)),
        ("partition", comparison.partition or NONE),
        ("seeds", ", ".join(map(str, comparison.seeds))),
        ("judged by", _judged_by(comparison)),
        *([("without learning", _without_learning(level))] if (level := ChanceLevel.of(comparison)) else []),
        *([("target", str(comparison.target))] if comparison.target else []),
        ("network", comparison.network.name if comparison.network else "none: this machine as it is"),
    ]
    if comparison.network is not None:
        rows.append(("links", _links(comparison)))
    if comparison.cost is not None:
        cost = comparison.cost
        rows.append(("computation", f"{duration(cost.step)} a step and {duration(cost.example)} for each example"))
    usual: list[tuple[str, str]] = []
    for what, values in (("run config", comparison.run_config), ("setting", comparison.settings)):
        for key, value in values.items():
            swept = ", ".join(dict.fromkeys(str(run.point[key]) for run in comparison.runs if key in run.point))
            (rows if swept or key in comparison.changed else usual).append((f"{what}: {key}", swept or str(value)))
    return rows, usual


def _judged_by(comparison: Comparison) -> str:
    judged_by = comparison.judged_by
    if judged_by is None:
        return NONE
    return f"{judged_by.name}, {'more' if judged_by.better == 'max' else 'less'} is better"


def _without_learning(level: ChanceLevel) -> str:
    of = "test" if level.tested else "training"
    return (
        f"accuracy {percent(level.uniform)} % by chance among {level.classes} classes, {percent(level.majority)} % by "
        f"always predicting the majority class, {level.label}; {percent(level.own)} % if each site predicts its own "
        f"majority class, on its own examples, mean over the sites (shares of the first seed's {of} examples)"
    )


def _links(comparison: Comparison) -> str:
    network = comparison.network
    if network is None:
        return NONE
    text = (
        f"{network.bandwidth / 1e6:g} Mbit/s and {duration(network.latency)} one way for each site, "
        f"{network.server / 1e6:g} Mbit/s for the server"
    )
    text += "".join(f"; client-{site + 1} computes {factor:g} times slower" for site, factor in network.slow.items())
    chance, slower = network.transient
    return text + (f"; {100 * chance:g} % of the steps take {slower:g} times as long" if chance else "")
