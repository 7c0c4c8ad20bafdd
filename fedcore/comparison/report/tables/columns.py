"""The columns of the main tables, each with what its numbers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fedcore.comparison.judging import ACCURACY, LOSS, PROBABILITIES
from fedcore.comparison.modes import in_report
from fedcore.comparison.modes.base import Readers
from fedcore.comparison.report.conditions import other_budget
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import (
    NONE,
    Format,
    JudgedMetric,
    Summary,
    best_points,
    count,
    decimal,
    duration,
    mean,
    mean_sd,
    point_text,
)
from fedcore.monitoring.formatting import size
from fedcore.monitoring.run_record import metric_like

_READERS: Final[Mapping[Readers, str]] = {
    "": NONE, "nobody": "nobody", "server": "the server", "sites": "other sites", "pooled": "all data pooled"
}  # fmt: skip
_OURS, _APPS = "on the test examples of all sites", "as the app's own evaluation reports them"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumn:
    """One column of the main tables.

    meaning: what its numbers are, if its title does not say it.
    narrow: also on a terminal with little room.
    costs: of the table of costs; the others are of the models.
    overview: also in the first table of a page, which has few columns.
    """

    title: str
    cell: Callable[[Summary], str]
    meaning: str = ""
    narrow: bool = True
    costs: bool = False
    overview: bool = False


def known_columns(comparison: Comparison, summaries: tuple[Summary, ...]) -> list[ReportColumn]:
    """The columns in which any row has something."""
    return [
        column
        for column in columns(comparison, summaries)
        if any(column.cell(one) != NONE for one in summaries) or not summaries
    ]


def columns(comparison: Comparison, summaries: tuple[Summary, ...]) -> tuple[ReportColumn, ...]:
    """The columns that may have data; the first ones name the row."""
    failed = any(one.failed for one in summaries)
    result = [ReportColumn(title="mode", cell=lambda one: one.mode, overview=True)]
    if comparison.sweeps:
        result.append(ReportColumn(title="set", cell=lambda one: point_text(one.point) or NONE, overview=True))
    result += _metric_columns(comparison)
    result += _budget_columns(comparison)
    result += _training_columns(comparison)
    result += _byte_columns(summaries)
    result += _clock_columns(comparison, failed=failed)
    result += _target_columns(comparison)
    if failed or len(comparison.seeds) > 1:
        result.append(ReportColumn(title="runs", cell=lambda one: one.runs, narrow=failed, overview=failed))
    return tuple(result)


def row_names(comparison: Comparison) -> int:
    """How many of the first columns say which row it is."""
    return 2 if comparison.sweeps else 1


def caption(comparison: Comparison) -> str:
    """Of which model on which examples the metrics are."""
    where = _APPS if comparison.own_evaluation else _OURS
    text = f"Metrics of the last model {where}"
    text += ", mean ± standard deviation over the seeds." if len(comparison.seeds) > 1 else "."
    if alone := _alone(comparison):
        text += f" In {alone}, the mean of the sites' own models, each on the test examples of all sites."
    return text


def loss_name(comparison: Comparison) -> str:
    """Under which name the loss is, "" if there is none."""
    names = {name for run in comparison.runs for name in run.metrics}
    server = {name for run in comparison.runs for name in run.by_server}
    return metric_like(names & server, LOSS) or metric_like(names, LOSS) or ""


def probabilities(comparison: Comparison) -> list[str]:
    """What stands next to an accuracy of two classes, if the runs have it."""
    judged_by = comparison.judged_by
    if judged_by is None or judged_by.name != ACCURACY:
        return []
    names = {name for run in comparison.runs for name in run.metrics}
    return [name for name in PROBABILITIES if name in names]


def energy(joules: float) -> str:
    """Joules, in a suitable unit."""
    return f"{joules:.0f} J" if joules < 3600 else f"{joules / 3600:.3g} Wh"


def _alone(comparison: Comparison) -> str:
    """The modes in which each site has a model of its own."""
    return ", ".join(mode.label for mode in comparison.modes if in_report(mode.kind).alone)


def _metric_columns(comparison: Comparison) -> list[ReportColumn]:
    """The metric that models are judged by, and next to it the loss."""
    metric, loss = JudgedMetric.of(comparison), loss_name(comparison)
    result = []
    if metric is not None:
        name, form = metric.name, metric.form
        result.append(
            ReportColumn(title=metric.column, cell=lambda one: mean_sd(one.metrics.get(name), form), overview=True)
        )
        if alone := _alone(comparison):
            result.append(
                ReportColumn(
                    title="at its own site" + (" %" if metric.percent else ""),
                    cell=lambda one: mean(one.own, form),
                    meaning="the last model on the test examples of one site, mean over the sites; "
                    f"in {alone} the site's own model. An easier test the more the sites differ",
                    narrow=False,
                )
            )
    result.append(
        ReportColumn(title="seen by", cell=_visible_to, meaning="who can read what a single site sends", overview=True)
    )
    if loss and (metric is None or loss != metric.name):
        result.append(
            ReportColumn(
                title=loss,
                cell=lambda one: mean_sd(one.metrics.get(loss), decimal),
                narrow=metric is None,
                overview=metric is None,
            )
        )

    def further(name: str) -> Callable[[Summary], str]:
        return lambda one: mean_sd(one.metrics.get(name), decimal)

    return result + [ReportColumn(title=name, cell=further(name), narrow=False) for name in probabilities(comparison)]


def _visible_to(one: Summary) -> str:
    if one.readers == "pooled" and one.samples is None:
        return "all it reads"
    spent = f", ε {one.epsilon:.3g}" if one.epsilon is not None else ""
    tuning = f" (trials {one.trials_epsilon:.3g} more)" if one.trials_epsilon is not None else ""
    return _READERS[one.readers] + spent + tuning


def _budget_columns(comparison: Comparison) -> list[ReportColumn]:
    """What the modes have at equal steps, if their last models are at equal examples; and the other way round."""
    metric, other = JudgedMetric.of(comparison), other_budget(comparison, best_points(comparison))
    if metric is None or other is None:
        return []
    form = metric.form

    def at_budget(one: Summary) -> str:
        if (at := one.at_equal.get(other)) is None:
            return NONE
        words = {"steps": mean(at.steps, count), "examples": mean(at.samples, count)}
        return f"{mean_sd(at.metric, form)} ({words.get(other) or mean(at.seconds, duration)})"

    return [
        ReportColumn(
            title=f"at equal {other}" + (" %" if metric.percent else ""),
            cell=at_budget,
            meaning=f"the model that each mode had when all had taken equally many {other}, and how many",
            narrow=False,
        )
    ]


def _training_columns(comparison: Comparison) -> list[ReportColumn]:
    meaning = "examples trained on, of all workers together"
    if any(run.samples is None and run.reported_examples is not None for run in comparison.runs):
        meaning += "; reported: what the clients of an app's own loop say, each training once, whatever it repeats"
    return [
        ReportColumn(title="samples", cell=_samples_cell, meaning=meaning, narrow=False, costs=True),
        ReportColumn(
            title="steps",
            cell=lambda one: mean(one.steps, count),
            meaning="of one worker, one after another, mean over the workers",
            narrow=False,
            costs=True,
        ),
    ]


def _samples_cell(one: Summary) -> str:
    """As they were counted; else as the app's clients report them, which says so."""
    if one.samples is None and one.reported_examples is not None:
        return f"{mean(one.reported_examples, count)} reported"
    return mean(one.samples, count)


def _byte_columns(summaries: Iterable[Summary]) -> list[ReportColumn]:
    """Bytes of training, and all; the first table has all, or those that a worker sends if nobody counted all."""
    complete = all(one.all_bytes is not None or one.bytes_up is None for one in summaries)
    meaning = "bytes of training that a worker {}, mean over the workers; without a network, of encoded {}"
    return [
        ReportColumn(
            title="up",
            cell=lambda one: mean(one.bytes_up, size),
            meaning=meaning.format("sends", "updates"),
            costs=True,
            overview=not complete,
        ),
        ReportColumn(
            title="down",
            cell=lambda one: mean(one.bytes_down, size),
            meaning=meaning.format("gets", "models"),
            costs=True,
        ),
        ReportColumn(
            title="all bytes",
            cell=lambda one: mean(one.all_bytes, size),
            meaning="of a worker in the whole run, both ways, mean over the workers: training, evaluations, polls, "
            "keys, TLS, and the headers of TCP and IP",
            narrow=False,
            costs=True,
            overview=complete,
        ),
    ]


def _clock_columns(comparison: Comparison, *, failed: bool) -> list[ReportColumn]:
    result = [
        ReportColumn(
            title="seconds",
            cell=lambda one: mean(one.seconds, duration),
            meaning="of training on this machine, from when every worker has imported the app, read its data, made "
            "its model and trained with it once",
            narrow=not (failed and comparison.simulated),
            costs=True,
            overview=not comparison.simulated,
        ),
        ReportColumn(
            title="start",
            cell=lambda one: mean(one.start_seconds, duration),
            meaning="what came before these seconds",
            narrow=False,
            costs=True,
        ),
        ReportColumn(
            title="wall",
            cell=lambda one: mean(one.wall_seconds, duration),
            meaning="start, training and evaluation",
            narrow=False,
            costs=True,
        ),
        ReportColumn(
            title="processor",
            cell=lambda one: mean(one.processor_seconds, duration),
            meaning="seconds of all workers and servers together, as the operating system counts them, without "
            "fedcore's own evaluation; workers that begin with the run have their start in them",
            narrow=False,
            costs=True,
        ),
    ]
    if comparison.watts is not None:
        result.append(
            ReportColumn(
                title="energy",
                cell=lambda one: mean(one.joules, energy),
                meaning=f"an estimate: processor seconds times {comparison.watts:g} watts a core, without memory, "
                "network, idle cores and accelerators",
                costs=True,
            )
        )
    if comparison.simulated:
        result.append(
            ReportColumn(
                title="simulated",
                cell=lambda one: mean(one.simulated_seconds, duration),
                meaning="seconds on the machines and links of the network model, or on simulated devices",
                costs=True,
                overview=True,
            )
        )
    return result


def _target_columns(comparison: Comparison) -> list[ReportColumn]:
    """When a model first was as good as wanted: its round, and the seconds up to it by the clock that counts."""
    if comparison.target is None:
        return []

    def cell(kind: str, form: Format) -> Callable[[Summary], str]:
        def target_cell(one: Summary) -> str:
            return one.to_target.format_spread(getattr(one.to_target, kind), form) if one.to_target else NONE

        return target_cell

    clock = ("simulated", "virtual_seconds") if comparison.simulated else ("seconds", "seconds")
    result = [
        ReportColumn(
            title=f"round of {comparison.target}",
            cell=cell("round", count),
            meaning="of the first model that was as good as that",
            overview=True,
        ),
        ReportColumn(title=f"{clock[0]} to it", cell=cell(clock[1], duration), narrow=False),
    ]
    if comparison.budget:
        result += [
            ReportColumn(title="examples to it", cell=cell("samples", count), narrow=False),
            ReportColumn(title="bytes to it", cell=cell("bytes", size), narrow=False),
        ]
    return result
