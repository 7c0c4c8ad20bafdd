"""Tables in Markdown: words begin at the left edge of their column, numbers end at the right one."""

from __future__ import annotations

from collections.abc import Sequence

from fedcore.comparison.report.tables import TextTable, word_columns


def markdown_table(table: TextTable) -> str:
    """The head, the rule that aligns the columns, and the rows."""
    head, rows = table
    rule = "|".join("---" if words else "---:" for words in word_columns(table))
    return "\n".join([_line(head), f"|{rule}|", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
