"""The tables below the main ones: other metrics, definitions, sites, sums, who sees what, what failed."""

from __future__ import annotations

from fedcore.comparison.app_evaluation import CLIENTS
from fedcore.comparison.modes import in_report
from fedcore.comparison.modes.exposure import EYES, views_of
from fedcore.comparison.report.details import by_site
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import (
    NONE,
    JudgedMetric,
    Spread,
    best_points,
    duration,
    mean_sd,
    numbers,
    point_text,
)
from fedcore.comparison.report.tables.columns import loss_name, probabilities
from fedcore.comparison.report.tables.main import TextTable


def metrics_table(comparison: Comparison) -> TextTable | None:
    """Every metric that the main table leaves out, a row for each and a column for each mode; None if none is.

    Of a sweep, at the value that is the best by the metric that models are judged by.
    """
    judged_by = [comparison.judged_by.name] if comparison.judged_by else []
    main = {loss_name(comparison), *judged_by, *probabilities(comparison)}
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


def exposure_table(comparison: Comparison) -> TextTable | None:
    """What each mode shows to whom; None if none is known. The last model is left out: it goes to all that get it."""
    rows: list[tuple[str, ...]] = [
        (mode.label, *views)
        for mode in comparison.modes
        if (views := views_of(in_report(mode.kind), simulation=mode.simulation)) is not None
    ]
    return (("mode", *EYES), rows) if rows else None


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


def loss_table(comparison: Comparison) -> TextTable | None:
    """A row for each worker that was lost; None if none was."""
    rows: list[tuple[str, ...]] = [
        (run.mode, str(run.seed), loss.worker, str(loss.round), loss.consequence, duration(loss.seconds))
        for run in comparison.runs
        for loss in run.losses
    ]
    return (("mode", "seed", "worker", "after round", "what became of the run", "until then"), rows) if rows else None


def failure_table(comparison: Comparison) -> TextTable | None:
    """A row for each run without a model; None if all have one."""
    rows: list[tuple[str, ...]] = [
        (run.mode, str(run.seed), point_text(run.point) or NONE, run.reason)
        for run in comparison.runs
        if run.status == "failed"
    ]
    return (("mode", "seed", "set", "reason"), rows) if rows else None
