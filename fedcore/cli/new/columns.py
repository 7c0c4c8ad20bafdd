"""Infers the schema of a CSV file, which all sites will read theirs by, with notes for a person to look at.

Of the file's values the schema repeats the names of categories and classes, which every site has to know. A number's
bounds are the next powers of ten, not the least and the greatest value that were seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.data.tables import (
    DECIMAL_COMMA,
    FALSE,
    TRUE,
    Cells,
    TableColumn,
    TableSchema,
    Task,
    nearest,
    numbers,
    read_cells,
)
from fedcore.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import pandas

LEAST_ROWS: Final = 40
MOST_CATEGORIES: Final = 20
MOST_CLASSES: Final = 10
"""Whole numbers in a target with no more values than this are classes; with more they are numbers."""
RARE: Final = 5
"""A category that fewer rows have may point to a person."""
_WIDEST: Final = 1000.0
"""Between the bounds of a target, in its unit: a squared error is then within a run's default for metrics."""
_LONGEST_NAME: Final = 100
_DATE: Final = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ]\d{1,2}:\d{2}.*)?")
_ID_NAME: Final = re.compile(r"(?i)(^|[^a-z])(id|uuid|guid|ssn|mrn|name|e-?mail|phone)($|[^a-z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredTable:
    """What a file gave.

    rows: with a target.
    notes: what a person should look at, a sentence each.
    """

    schema: TableSchema
    rows: int
    notes: tuple[str, ...]


class _ExcludedColumn(Exception):
    """A column that no model should see."""


def infer_table(
    path: Path, target: str, *, task: str = "", categories: Mapping[str, tuple[str, ...]] | None = None
) -> InferredTable:
    """Look at a CSV file.

    Raises DataError for a file that cannot be learned from, ConfigurationError for a target or a column that is not
    there.

    Args:
        task: "classification" or "regression"; by default what the target looks like.
        categories: of columns whose categories are given, whatever the file holds.
    """
    table = read_cells(path)
    _check_names(path, table, target, categories or {})
    rows = table[table[target].notna()]
    if len(rows) < LEAST_ROWS:
        raise DataError(
            f"{path} has {len(rows)} rows with a {target!r}, too few to learn from; at least {LEAST_ROWS} are needed",
            check="too-few-rows",
        )
    notes = []
    if dropped := len(table) - len(rows):
        notes.append(f"{dropped} rows have no {target!r} and are left out")
    columns, left_out, column_notes = _columns(rows, target, categories or {})
    notes += column_notes
    if not columns:
        raise DataError(f"{path} has no column to learn from apart from {target!r}: {'; '.join(notes)}")
    kind, classes, bounds, target_notes = _target(rows[target], task)
    unit = max(1.0, (bounds[1] - bounds[0]) / _WIDEST)
    if unit > 1:
        target_notes.append(f"errors of {target!r} are reported in units of {unit:g}")
    schema = TableSchema(
        target=target, task=kind, classes=classes, target_low=bounds[0], target_high=bounds[1], target_unit=unit,
        columns=tuple(columns), left_out=tuple(left_out.items()),
    )  # fmt: skip
    return InferredTable(schema=schema, rows=len(rows), notes=tuple(notes + target_notes))


def _check_names(path: Path, table: pandas.DataFrame, target: str, categories: Mapping[str, tuple[str, ...]]) -> None:
    names = list(table.columns)
    for name in (target, *categories):
        if name not in names:
            raise ConfigurationError(f"{path} has no column {nearest(name, names)}", check="no-such-column")
    for name in names:
        if len(name) > _LONGEST_NAME or not name.isprintable() or (name == "y" != target) or names.count(name) > 1:
            raise ConfigurationError(
                f"column {name[:40]!r} of {path} needs another name: one that occurs once, has up to {_LONGEST_NAME} "
                "printable characters, and is not y, which stands for the target"
            )


def _columns(
    rows: pandas.DataFrame, target: str, categories: Mapping[str, tuple[str, ...]]
) -> tuple[list[TableColumn], dict[str, str], list[str]]:
    """The columns to learn from, the reason for each that is left out, and notes."""
    columns, left_out, notes = [], {}, []
    for name in rows.columns:
        if name == target:
            continue
        try:
            column, column_notes = _column(rows[name], categories.get(name))
            columns.append(column)
            notes += column_notes
        except _ExcludedColumn as reason:
            left_out[name] = str(reason)
            notes.append(f"column {name!r} is left out: {reason}")
    return columns, left_out, notes


def _column(cells: Cells, categories: tuple[str, ...] | None) -> tuple[TableColumn, list[str]]:
    """The column and notes about it; raises _ExcludedColumn."""
    name, present = str(cells.name), cells.dropna()
    if categories is not None:
        return TableColumn(name=name, kind="category", categories=categories), []
    if not len(present):
        raise _ExcludedColumn("all its values are missing")
    distinct = set(present.str.lower())
    if len(distinct) == 1:
        raise _ExcludedColumn("it has the same value in every row")
    notes = []
    if (share := 1 - len(present) / len(cells)) >= 0.5:
        notes.append(f"column {name!r} is missing in {share:.0%} of the rows")
    if distinct <= TRUE | FALSE:
        return TableColumn(name=name, kind="boolean"), notes
    values = _numbers(present)
    if values is not None:
        _refuse_identifier(name, values)
        low, high = coarse_bounds(values)
        return TableColumn(name=name, kind="number", low=low, high=high), notes
    return _category(name, present, notes)


def _category(name: str, present: Cells, notes: list[str]) -> tuple[TableColumn, list[str]]:
    if present.str.fullmatch(_DATE).mean() > 0.9:
        raise _ExcludedColumn("it holds dates; give a meaningful number, such as an age or days since admission")
    if present.str.fullmatch(DECIMAL_COMMA).mean() > 0.9:
        raise _ExcludedColumn("it holds numbers with a decimal comma; write them with a point")
    counts = present.value_counts()
    if len(counts) == len(present):
        raise _ExcludedColumn("it is different in every row, as an identifier or a name is")
    if len(counts) > MOST_CATEGORIES:
        raise _ExcludedColumn(
            f"it has {len(counts)} categories, more than {MOST_CATEGORIES}; join some, or name those that count with "
            f"--categories {name!r}=A|B|C"
        )
    if rare := int((counts < RARE).sum()):
        notes.append(f"{rare} categories of {name!r} occur in fewer than {RARE} rows, and their names will be known")
    return TableColumn(name=name, kind="category", categories=tuple(sorted(map(str, counts.index)))), notes


def _refuse_identifier(name: str, values: NDArray[np.float64]) -> None:
    """A number of its own for every row is no measurement where it is called so, or counts up."""
    distinct = np.unique(values)
    integers = bool((values == np.round(values)).all())
    counts_up = len(distinct) > 1 and bool((np.diff(distinct) == 1).all())
    if integers and len(distinct) == len(values) and (counts_up or _ID_NAME.search(name)):
        raise _ExcludedColumn("it is different in every row, as an identifier is")


def _target(cells: Cells, task: str) -> tuple[Task, tuple[str, ...], tuple[float, float], list[str]]:
    """Task, classes, bounds and notes; raises DataError for a target that nothing can be learned of."""
    name, counts = str(cells.name), cells.value_counts()
    if len(counts) < 2:
        raise DataError(f"the target {name!r} has only one value, so there is nothing to learn", check="one-value")
    values = _numbers(cells)
    integers = values is not None and bool((values == np.round(values)).all())
    if task == "regression" or (not task and values is not None and not (integers and len(counts) <= MOST_CLASSES)):
        if values is None:
            raise DataError(f"the target {name!r} holds text, which is no number: leave --task regression out")
        return "regression", (), coarse_bounds(values), []
    if len(counts) > MOST_CATEGORIES:
        raise DataError(
            f"the target {name!r} has {len(counts)} classes, more than {MOST_CATEGORIES}; join some, or take another",
            check="too-many-classes",
        )
    classes = [str(one) for one in counts.index]
    classes.sort(key=(lambda one: (float(one), one)) if values is not None else str.lower)
    if {one.lower() for one in classes} <= TRUE | FALSE:
        classes.sort(key=lambda one: one.lower() in TRUE)
    notes = []
    if len(classes) == 2:
        notes.append(f"the app predicts whether the column {name!r} is {classes[1]!r}; else it is {classes[0]!r}")
    if values is not None and len(classes) > 2:
        notes.append(f"the target {name!r} is taken for {len(classes)} classes; --task regression makes it a number")
    if (least := int(counts.min())) < RARE:
        notes.append(f"a class of {name!r} has only {least} rows")
    return ("binary" if len(classes) == 2 else "classes"), tuple(classes), (0.0, 1.0), notes


def _numbers(cells: Cells) -> NDArray[np.float64] | None:
    """Of a column without missing values; None if one is no number."""
    try:
        return numbers(cells)
    except DataError:
        return None


def coarse_bounds(values: NDArray[np.float64]) -> tuple[float, float]:
    """The next powers of ten around the values, one of them 0 if all have one sign; they tell no value."""
    low, high = float(values.min()), float(values.max())
    return (-_power(-low) if low < 0 else 0.0), (_power(high) if high > 0 else 0.0)


def _power(value: float) -> float:
    return 10.0 ** math.ceil(math.log10(value))
