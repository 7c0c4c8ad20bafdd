"""A comparison on a terminal of any width, or in a file: its table, and below it the sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.fairness import broken, fairness
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.summary import summarize
from fedcore.comparison.report.tables import has_words, known_columns, row_names
from fedcore.monitoring.wide_table import WideColumn, WideTable
from fedcore.system.terminal import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# A longer label is folded.
_WIDEST_LABEL: Final = 24
_LONGEST: Final = 300
_BAD: Final = "red"


@dataclass(frozen=True, slots=True)
class TerminalReport:
    """What rich prints: it is as wide as the terminal, and cuts nothing but very long values of checks."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = _table(self.comparison)
        yield table
        yield ""
        if omitted := table.omitted(options.max_width):
            yield Text(f"In the report too: {', '.join(omitted)}.", style="dim", overflow="fold")
            yield ""
        yield _paragraphs([*((text, "") for text in headline(self.comparison)), *_faults(self.comparison)])


def terminal_table(comparison: Comparison) -> TerminalReport:
    """The main table with the sentences below it.

    What was not equal in all modes, and which runs failed, is said in red.
    """
    return TerminalReport(comparison)


def _table(comparison: Comparison) -> WideTable:
    summaries = summarize(comparison)
    columns, heads = known_columns(comparison, summaries), row_names(comparison)
    cells = [[column.cell(one) for one in summaries] for column in columns]
    return WideTable(
        title=f"{comparison.app}: {comparison.divided}",
        columns=[
            WideColumn(
                column.title,
                texts,
                spare=not column.narrow,
                left=index < heads or has_words(texts),
                widest=_WIDEST_LABEL if index < heads else 0,
            )
            for index, (column, texts) in enumerate(zip(columns, cells, strict=True))
        ],
        heads=heads,
        styles=["" if one.finished else _BAD for one in summaries],
    )


def _paragraphs(texts: Sequence[tuple[str, str]]) -> Table:
    """One below the other, each with a mark before it, since its lines are broken at the edge."""
    view = Table.grid(padding=(0, 1, 0, 0))
    view.add_column(width=1)
    view.add_column(overflow="fold")
    for text, style in texts:
        view.add_row("•", Text(visible(text), style=style, overflow="fold"))
    return view


def _faults(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for check in broken(fairness(comparison)):
        values = "; ".join(f"{where}: {value}" for where, value in check.values.items())
        yield f"{check.name}: {check.status}, {check.detail}" + (f". {_cut(values)}" if values else ""), _BAD
    for run in comparison.runs:
        if run.status == "failed":
            yield f"{run.mode}, seed {run.seed}, failed: {_ends(run.reason)}", _BAD


def _ends(reason: str) -> str:
    """The beginning and the end of a long reason: the last line of a log says what went wrong."""
    if len(reason) <= _LONGEST:
        return reason
    first, last = reason.split("\n", maxsplit=1)[0], reason[-_LONGEST // 2 :]
    return f"{first[: _LONGEST // 2]} … {last} (whole in the report)"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … (whole in the report)"
