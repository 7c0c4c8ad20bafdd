"""Rows that have one value of a column, and under which names the sites know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from fedcore.data.statistics import CONDITION, Column
from fedcore.data.tables import TableColumn, TableSchema
from fedcore.errors import ConfigurationError

TARGET: Final = "y"
"""The column of the target's values, or of the numbers of its classes."""
TRUTH: Final = ("no", "yes")
"""Of a boolean column: 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows that are counted together. label: as it is shown. condition: that its rows meet; "" for all rows."""

    label: str
    condition: str

    def of(self, name: str) -> str:
        """The name of a column in the rows of this group."""
        return f"{name}{CONDITION}{self.condition}" if self.condition else name


def all_columns(schema: TableSchema) -> tuple[TableColumn, ...]:
    """The columns of a table, the target as the last one."""
    if schema.classes:
        target = TableColumn(name=schema.target, kind="category", categories=schema.classes)
    else:
        target = TableColumn(name=schema.target, kind="number", low=schema.target_low, high=schema.target_high)
    return (*schema.columns, target)


def column_features(schema: TableSchema, column: TableColumn) -> tuple[str, ...]:
    """The names under which the sites have a column: one, or one for each of its values."""
    if column.name != schema.target:
        return column.features
    return tuple(f"{TARGET}={number}" for number in range(len(schema.classes))) or (TARGET,)


def groups_of(schema: TableSchema, name: str) -> tuple[RowGroup, ...]:
    """The rows of each value of a column; raises ConfigurationError for a column whose values make no groups."""
    column = next((one for one in all_columns(schema) if one.name == name), None)
    if column is None or column.kind == "number":
        names = [one.name for one in all_columns(schema) if one.kind != "number"]
        raise ConfigurationError(
            f"the values of {name!r} make no groups; name one of {', '.join(names) or 'no column'}", check="no-groups"
        )
    if not column.categories:
        return tuple(RowGroup(label=label, condition=f"{name}={number}") for number, label in enumerate(TRUTH))
    conditions = column_features(schema, column)
    pairs = zip(column.categories, conditions, strict=True)
    return tuple(RowGroup(label=label, condition=condition) for label, condition in pairs)


def united(columns: Sequence[Column], overall: Column) -> Column:
    """A column in the rows of several groups together, `overall` if it is of no more rows: its cells are finer."""
    cells = np.sum([one.cells for one in columns], axis=0)
    if round(float(cells.sum())) == round(overall.count):
        return overall
    sums = {
        name: sum(getattr(one, name) for one in columns) for name in ("missing", "below", "above", "first", "second")
    }
    return replace(overall, cells=tuple(cells.tolist()), **sums)


def target_bounds(schema: TableSchema) -> tuple[float, float]:
    """Of the target as the sites have it, which every row has."""
    classes = len(schema.classes)
    return (
        (0.0, classes - 1.0)
        if classes
        else (schema.target_low / schema.target_unit, schema.target_high / schema.target_unit)
    )


def ones(column: Column) -> float:
    """How many of a column's values, each 0 or 1, are 1."""
    return round((column.first + column.count) / 2)
