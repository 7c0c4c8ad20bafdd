"""The comparison as a table on the terminal."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table

from fedcore.compare.report.document import Comparison
from fedcore.compare.report.fairness import broken, fairness
from fedcore.compare.report.headline import headline
from fedcore.compare.report.summary import summarize
from fedcore.compare.report.tables import columns

# Cells of the column of labels; longer ones are folded, on a narrow terminal sooner.
_NARROWEST, _WIDEST = 14, 24


def terminal_table(comparison: Comparison) -> Table:
    """The main table with the sentences below it; fits into 80 columns.

    What was not equal in all modes, and which runs failed, is said in red.
    """
    summaries = summarize(comparison)
    found = [column for column in columns(comparison, summaries) if column.narrow]
    view = Table(
        title=f"{escape(comparison.app)}: {comparison.sites} sites, {comparison.partition}",
        caption=_caption(comparison),
        caption_justify="left",
        caption_style="default",
        box=box.SIMPLE_HEAVY,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for index, column in enumerate(found):
        if index:
            view.add_column(column.title, justify="right", no_wrap=True)
        else:
            longest = max((len(one.mode) for one in summaries), default=0)
            view.add_column(column.title, overflow="fold", min_width=min(longest, _NARROWEST), max_width=_WIDEST)
    for one in summaries:
        cells = [escape(column.cell(one)) for column in found]
        view.add_row(*cells, style=None if one.finished else "red")
    return view


def _caption(comparison: Comparison) -> str:
    lines = [escape(sentence) for sentence in headline(comparison)]
    for check in broken(fairness(comparison)):
        values = "; ".join(f"{place}: {value}" for place, value in check.values.items())
        lines.append(f"[red]{check.name}: {check.status}, {escape(check.detail)} {escape(_cut(values))}[/]")
    lines += [
        f"[red]{escape(run.mode)}, seed {run.seed}, failed: {escape(_cut(run.reason))}[/]"
        for run in comparison.runs
        if run.status == "failed"
    ]
    return "\n".join(lines)


def _cut(text: str, longest: int = 300) -> str:
    return text if len(text) <= longest else f"{text[:longest]} … (whole in the report)"
