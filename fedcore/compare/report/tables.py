"""The comparison as tables of text, the same for the page, the Markdown and the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedcore.compare.report.cells import NONE, count, decimal, duration, mean, mean_sd, percent, seeds, size
from fedcore.compare.report.details import site_table
from fedcore.compare.report.document import Comparison
from fedcore.compare.report.summary import Summary, point_text, summarize

CAPTION = (
    "Accuracy and loss of the last model on the test examples of all sites, mean ± standard deviation over the seeds. "
    "Samples: examples trained on, all workers together. Steps, bytes up and down: mean over the workers. Seconds: of "
    "training on this machine; wall: with the start of all processes and evaluation."
)
SIMULATED = "Simulated: seconds on the machines and links of the network model."


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the main table. narrow: also on a terminal of 80 columns."""

    title: str
    cell: Callable[[Summary], str]
    narrow: bool = True


def columns(comparison: Comparison, summaries: tuple[Summary, ...]) -> tuple[Column, ...]:
    """Those that have data; the first is the mode."""
    found = [Column(title="mode", cell=lambda one: one.mode)]
    if comparison.sweeps:
        found.append(Column(title="set", cell=lambda one: point_text(one.point) or NONE))
    if any(one.accuracy for one in summaries):
        found.append(Column(title="accuracy %", cell=lambda one: mean_sd(one.accuracy, percent)))
        found.append(Column(title="best %", cell=lambda one: mean(one.best_accuracy, percent), narrow=False))
    found += [
        Column(title="loss", cell=lambda one: mean_sd(one.loss, decimal), narrow=False),
        Column(title="samples", cell=lambda one: mean(one.samples, count)),
        Column(title="steps", cell=lambda one: mean(one.steps, count), narrow=False),
        Column(title="up", cell=lambda one: mean(one.bytes_up, size)),
        Column(title="down", cell=lambda one: mean(one.bytes_down, size)),
        Column(title="seconds", cell=lambda one: mean(one.seconds, duration)),
        Column(title="wall", cell=lambda one: mean(one.wall_seconds, duration), narrow=False),
    ]
    if comparison.simulated:
        found.append(Column(title="simulated", cell=lambda one: mean(one.simulated_seconds, duration)))
    if any(one.failed for one in summaries) or len(comparison.seeds) > 1:
        found.append(Column(title="runs", cell=seeds, narrow=any(one.failed for one in summaries)))
    return tuple(found)


def main_table(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows, one row for each mode and point."""
    summaries = summarize(comparison)
    found = columns(comparison, summaries)
    return tuple(column.title for column in found), [tuple(column.cell(one) for column in found) for one in summaries]


def sites_table(comparison: Comparison, most: int = 10) -> tuple[tuple[str, ...], list[tuple[str, ...]]] | None:
    """Accuracy in percent by mode and site; None without data, and where a table would be too wide."""
    names, found = site_table(comparison)
    if not names or len(names) > most:
        return None
    rows = [(label, *(mean_sd(by.get(name), percent) for name in names)) for label, by in found.items()]
    return ("mode", *names), rows


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


def settings_rows(comparison: Comparison) -> list[tuple[str, str]]:
    """What the comparison was made of."""
    rows = [
        ("app", comparison.app),
        ("sites", str(comparison.sites)),
        ("partition", comparison.partition),
        ("seeds", ", ".join(map(str, comparison.seeds))),
        ("network", comparison.network.name if comparison.network else "none: the loopback as it is"),
    ]
    if comparison.network is not None:
        rows.append(("links", _links(comparison)))
    if comparison.cost is not None:
        cost = comparison.cost
        rows.append(("computation", f"{duration(cost.step)} a step and {duration(cost.example)} for each example"))
    rows += [(f"run config: {key}", str(value)) for key, value in comparison.run_config.items()]
    return rows + [(f"setting: {key}", str(value)) for key, value in comparison.settings.items()]


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
