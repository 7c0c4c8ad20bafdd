"""A table of any number of columns on a terminal of any width, in which no cell is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fedcore.system.terminal import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_GAP: Final = 2
_LEAST: Final = 8
"""A column that is folded stays this wide."""


@dataclass(frozen=True, slots=True)
class WideColumn:
    """A column of a `WideTable`.

    title: its head, which is broken between words.
    cells: of all rows.
    spare: it is left out if the table without it needs fewer lines.
    left: text, and no numbers.
    widest: longer cells are folded; 0 for no limit.
    """

    title: str
    cells: Sequence[str]
    spare: bool = False
    left: bool = False
    widest: int = 0

    @property
    def width(self) -> int:
        """What it takes to fold no cell, and to have the head on two lines."""
        needed = max((cell_len(line) for cell in self.cells for line in visible(cell).split("\n")), default=1)
        return max(min(needed, self.widest or needed), self._head)

    @property
    def _head(self) -> int:
        """The width of the head on two lines, which are as long as each other as far as its words allow."""
        words = visible(self.title).split(" ")
        ways = [(" ".join(words[:n]), " ".join(words[n:])) for n in range(1, len(words) + 1)]
        return min(max(map(cell_len, way)) for way in ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class WideTable:
    """Columns next to one another as far as there is room; the others follow below, with the first columns again.

    title: above it.
    columns: at least one more than `heads`.
    heads: how many of the first columns name a row.
    styles: of the rows, as rich has them; () for none.
    """

    title: str = ""
    columns: Sequence[WideColumn]
    heads: int = 1
    styles: Sequence[str] = ()

    def parts(self, width: int) -> list[list[WideColumn]]:
        """The columns of each table, one below the other, when there are `width` cells.

        Spare columns are there if they need no table more.
        """
        heads, rest = list(self.columns[: self.heads]), list(self.columns[self.heads :])
        chosen = [column for column in rest if not column.spare] or rest
        most = len(_packed(heads, chosen, width))
        for spare in rest:
            if spare not in chosen:
                more = [column for column in rest if column in chosen or column is spare]
                if len(_packed(heads, more, width)) <= most:
                    chosen = more
        return [[*heads, *part] for part in _packed(heads, chosen, width)]

    def omitted(self, width: int) -> list[str]:
        """Titles of the columns that have no room."""
        there = [column for part in self.parts(width) for column in part]
        return [column.title for column in self.columns if column not in there]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if self.title:
            yield Text(visible(self.title), style="bold", overflow="fold", no_wrap=False)
        for number, part in enumerate(self.parts(width)):
            if self.title or number:
                yield ""
            yield self._table(part, width)

    def _table(self, part: Sequence[WideColumn], width: int) -> Table:
        # The box puts one more space between two columns.
        view = Table(box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        for column, wide in zip(part, _widths(part, width), strict=True):
            head = Text(visible(column.title), overflow="fold")
            view.add_column(
                head, justify="left" if column.left else "right", width=wide, overflow="fold", vertical="top"
            )
        for index, cells in enumerate(zip(*(column.cells for column in part), strict=True)):
            texts = [Text(visible(cell), overflow="fold") for cell in cells]
            view.add_row(*texts, style=self.styles[index] if self.styles else None)
        return view


def _packed(heads: Sequence[WideColumn], rest: Sequence[WideColumn], width: int) -> list[list[WideColumn]]:
    """As many columns in each table as there is room for, at least one."""
    fixed = sum(column.width + _GAP for column in heads)
    tables: list[list[WideColumn]] = [[]]
    left = width - fixed
    for column in rest:
        if tables[-1] and left < column.width:
            tables.append([])
            left = width - fixed
        tables[-1].append(column)
        left -= column.width + _GAP
    return tables


def _widths(part: Sequence[WideColumn], width: int) -> list[int]:
    """The width of each column; the widest are folded until all have room."""
    widths = [column.width for column in part]
    over = sum(widths) + _GAP * (len(widths) - 1) - width
    while over > 0 and max(widths) > _LEAST:
        widest = widths.index(max(widths))
        widths[widest] -= 1
        over -= 1
    return widths
