"""What a site's owner should look at in a table, and that a usual one has nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.data.table_remarks import remarks
from fedcore.data.tables import TableColumn, TableSchema

SCHEMA = TableSchema(
    target="ill",
    task="binary",
    classes=("no", "yes"),
    columns=(
        TableColumn(name="age", kind="number", low=0.0, high=100.0),
        TableColumn(name="sex", kind="category", categories=("f", "m")),
    ),
)
USUAL = [f"{20 + row % 50},{'fm'[row % 2]},{('no', 'yes')[row % 3 == 0]}" for row in range(60)]


def table(folder: Path, rows: list[str]) -> Path:
    (folder / "rows.csv").write_text("\n".join(["age,sex,ill", *rows]) + "\n")
    return folder / "rows.csv"


def test_a_usual_table_has_none(tmp_path: Path) -> None:
    assert remarks(SCHEMA, table(tmp_path, USUAL)) == []


@pytest.mark.parametrize(
    ("old", "new", "about"),
    [
        ("", "", ["rows"]),
        ("yes", "", ["rows", "'ill'", "'yes'"]),
        ("yes", "no", ["'yes'"]),
        (",f,", ",m,", ["'sex'"]),
        (",f,", ",,", ["'sex'"]),
        ("2", "2000", ["'age'"]),
    ],
)
def test_each_oddity_has_its_sentence(old: str, new: str, about: list[str], tmp_path: Path) -> None:
    rows = [row.replace(old, new) for row in USUAL] if old else USUAL[:45]
    made = remarks(SCHEMA, table(tmp_path, rows))
    assert len(made) >= len(about)
    for name, remark in zip(about, made, strict=False):
        assert name in remark


def test_a_column_that_is_mostly_empty_is_named_and_no_cell_is_repeated(tmp_path: Path) -> None:
    rows = [f",{row.partition(',')[2]}" if number % 3 else row for number, row in enumerate(USUAL)]
    (remark,) = remarks(SCHEMA, table(tmp_path, rows))
    assert "'age'" in remark
    assert "67%" in remark
