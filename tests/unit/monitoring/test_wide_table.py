"""A table on a terminal of any width: no cell is cut, however many columns there are."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedcore.monitoring.wide_table import WideColumn, WideTable


def printed(table: WideTable, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(table)
    return console.file.getvalue().splitlines()


def numbers(count: int, *, spare: bool = False) -> list[WideColumn]:
    """Columns whose cells are like no other."""
    return [
        WideColumn(f"of column {index}", [f"{index:03d}.{row} kB" for row in range(3)], spare=spare)
        for index in range(count)
    ]


MODES = WideColumn("mode", ["centralized", "ps-ssp[s=3,shards=2]", "federated"], left=True, widest=24)


@given(st.integers(0, 30), st.integers(40, 160))
def test_every_cell_is_whole_at_any_width(count: int, width: int) -> None:
    lines = printed(WideTable(columns=[MODES, *numbers(count)]), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(text.count(cell) == 1 for column in numbers(count) for cell in column.cells)
    assert "…" not in text


def test_the_first_columns_stand_before_every_part() -> None:
    table = WideTable(columns=[MODES, WideColumn("set", ["lr=0.1"] * 3), *numbers(9)], heads=2)
    assert len(table.parts(80)) > 1
    assert all([column.title for column in part[:2]] == ["mode", "set"] for part in table.parts(80))


def test_a_spare_column_makes_no_part_more() -> None:
    table = WideTable(columns=[MODES, *numbers(3), *numbers(5, spare=True)])
    parts = [len(table.parts(width)) for width in (60, 200)]
    assert parts == [len(WideTable(columns=[MODES, *numbers(3)]).parts(60)), 1]
    assert len(table.omitted(60)) > 0
    assert table.omitted(200) == []


@pytest.mark.parametrize("width", [12, 20, 40])
def test_a_cell_wider_than_the_terminal_is_folded(width: int) -> None:
    words = "x" * 30 + "y" * 30
    lines = printed(WideTable(columns=[WideColumn("mode", ["a"]), WideColumn("reason", [words])]), width)
    assert "".join(re.findall("[xy]", "".join(lines))) == words
    assert max(map(len, lines)) <= width


def test_what_others_wrote_is_no_markup_and_moves_no_cursor() -> None:
    hostile = WideColumn("mode", ["[red]a\x1b[2J"] * 3)
    text = "\n".join(printed(WideTable(columns=[hostile, *numbers(1)]), 80))
    assert "[red]a\\x1b[2J" in text
    assert "\x1b" not in text
