"""What the owner of a table should look at before it takes part; it is said on the owner's machine and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from fedcore.data.tables import TableColumn, TableSchema, read_cells

MUCH_MISSING: Final = 0.5
"""The share of missing cells from which on a column is remarkable."""
MUCH_BEYOND: Final = 0.01
"""The same of numbers beyond the bounds; more of them, and the column may be in another unit."""
FEW_ROWS: Final = 10
"""Of a class."""


def remarks(schema: TableSchema, path: Path) -> list[str]:
    """What is unusual about a CSV file that fits the schema, a sentence each; no value of a cell is repeated.

    Raises DataError for a file that does not fit.
    """
    rows = schema.read(path)
    left_out = len(read_cells(path)) - len(rows)
    made = [f"{path} has {len(rows)} rows"] if len(rows) < 5 * FEW_ROWS else []
    if left_out:
        made.append(f"{left_out} rows have no {schema.target!r} and are left out")
    start = 0
    for column in schema.columns:
        width = len(column.features)
        made += _of_column(column, rows.x[:, start : start + width])
        start += width
    for index, name in enumerate(schema.classes):
        count = int((rows.y == index).sum())
        if count < FEW_ROWS:
            made.append(f"{_rows(count)} of class {name!r}")
    return made


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count or 'no'} rows are"


def _of_column(column: TableColumn, values: np.ndarray) -> Iterator[str]:
    missing = ~values.any(axis=1) if column.kind == "category" else np.isnan(values[:, 0])
    share = float(missing.mean())
    if share > MUCH_MISSING:
        yield f"column {column.name!r}: {share:.0%} of the cells are missing"
    known = values[~missing]
    if len(known) > 1 and (known == known[0]).all():
        yield f"column {column.name!r} has the same value in all rows"
    if column.kind == "number" and len(known):
        beyond = float(((known < column.low) | (known > column.high)).mean())
        if beyond > MUCH_BEYOND:
            yield (
                f"column {column.name!r}: {beyond:.0%} of the numbers are beyond {column.low:g} and {column.high:g} of "
                "schema.toml; they may be in another unit"
            )
