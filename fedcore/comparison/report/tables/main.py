"""The main table of a comparison as text: whole, in parts, and with few columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import NONE, Summary, summarize
from fedcore.comparison.report.tables.columns import ReportColumn, columns, known_columns, row_names
from fedcore.monitoring.formatting import size

TextTable: TypeAlias = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Its head, and its rows."""
_NO_NUMBERS: Final = (NONE, "", "not finite")
_NUMBER: Final = re.compile(r"[-+]?(\d|inf|nan)")


def main_table(comparison: Comparison) -> TextTable:
    """Header and rows, one row for each mode and point."""
    summaries = summarize(comparison)
    return _table(columns(comparison, summaries), summaries)


def overview(comparison: Comparison) -> TextTable | None:
    """The few columns that a reader needs first; None if there is no run."""
    summaries = summarize(comparison)
    chosen = [column for column in known_columns(comparison, summaries) if column.overview]
    return _table(chosen, summaries) if len(chosen) > row_names(comparison) else None


def part_tables(comparison: Comparison) -> dict[str, TextTable]:
    """The main table in two, "models" and "costs", each with the columns that name its rows; without an empty one."""
    summaries = summarize(comparison)
    return {
        name: _table([*_names(comparison, summaries), *part], summaries)
        for name, part in _parts(comparison, summaries).items()
    }


def further_parts(comparison: Comparison) -> dict[str, TextTable]:
    """As `part_tables`, without a part that the overview has whole."""
    there = set(table[0]) if (table := overview(comparison)) else set()
    return {name: part for name, part in part_tables(comparison).items() if not set(part[0]) <= there}


def meanings(comparison: Comparison, part: str = "") -> list[tuple[str, str]]:
    """The columns whose titles do not say what their numbers are, and what they are.

    Args:
        part: of `part_tables`; "" for all.
    """
    summaries = summarize(comparison)
    parts = _parts(comparison, summaries)
    chosen = [one for name, columns_of in parts.items() if part in ("", name) for one in columns_of]
    return [(one.title, one.meaning) for one in chosen if one.meaning]


def pooling(comparison: Comparison) -> str:
    """What it would take to bring all training data together, in a sentence; "" if that is not known."""
    pooled = pooled_bytes(comparison)
    return "" if pooled is None else f"To pool the training data would take {size(pooled)} once, as arrays."


def pooled_bytes(comparison: Comparison) -> int | None:
    """What it takes to bring all training data together, once; None if that of a site is not known."""
    sizes = [site.training_bytes for site in comparison.split]
    known = [one for one in sizes if one is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def has_words(cells: Iterable[str]) -> bool:
    """Whether a column has words, which begin at its left edge; numbers end at the right one."""
    known = [cell for cell in cells if cell not in _NO_NUMBERS]
    return bool(known) and not all(map(_NUMBER.match, known))


def word_columns(table: TextTable) -> list[bool]:
    """For each column whether it has words; the first one names the row."""
    head, rows = table
    return [not index or has_words(row[index] for row in rows) for index in range(len(head))]


def _parts(comparison: Comparison, summaries: tuple[Summary, ...]) -> dict[str, list[ReportColumn]]:
    rest = known_columns(comparison, summaries)[row_names(comparison) :]
    parts = {"models": [one for one in rest if not one.costs], "costs": [one for one in rest if one.costs]}
    return {name: part for name, part in parts.items() if part}


def _names(comparison: Comparison, summaries: tuple[Summary, ...]) -> list[ReportColumn]:
    return known_columns(comparison, summaries)[: row_names(comparison)]


def _table(chosen: Sequence[ReportColumn], summaries: Iterable[Summary]) -> TextTable:
    return tuple(one.title for one in chosen), [tuple(one.cell(row) for one in chosen) for row in summaries]
