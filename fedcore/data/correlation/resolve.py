"""The question for correlations from names of columns and what is known of these: a table's schema, or their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fedcore.data.correlation.question import CorrelationQuery
from fedcore.data.statistics import Bounds
from fedcore.data.tables import TableSchema, nearest
from fedcore.errors import ConfigurationError

ALL: Final = "all"
"""In place of names: all columns that are numbers."""


def correlation_query(
    names: Sequence[str], *, bounds: Bounds | None = None, schema: TableSchema | None = None
) -> CorrelationQuery:
    """The question for these columns; raises ConfigurationError.

    Args:
        names: of the columns, or `ALL` alone.
        bounds: of the columns, which scale them; they come before those of the schema.
        schema: of the app's table; None if the app has none.
    """
    known = _of_schema(schema) if schema is not None else {}
    by_name = bounds if isinstance(bounds, Mapping) else {}
    if tuple(names) == (ALL,):
        names = tuple(known or by_name)
        if not names:
            raise ConfigurationError(
                "nobody says which columns there are; name them, or give bounds by name, as in "
                "--bounds 'age=0:120 dose=0:5'",
                check="no-bounds",
            )
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise ConfigurationError(f"{twice[0]} is named twice", check="same-column")
    columns, pairs = [], []
    for name in names:
        column, pair = known.get(name, (name, None))
        if schema is not None and name not in known:
            raise _no_number(name, schema, tuple(known))
        pair = by_name.get(name, pair) if isinstance(bounds, Mapping) else bounds or pair
        if pair is None:
            there = ", ".join(by_name) or "none"
            raise ConfigurationError(
                f"there are no bounds of {name!r}; there are {there}. They say how the column is scaled, alike at all "
                f"sites: give them as --bounds '{name}=0:120', or in [tool.fedcore.statistics.bounds] of the app",
                check="no-bounds",
            )
        columns.append(column)
        pairs.append(pair)
    low, high = zip(*pairs, strict=True) if pairs else ((), ())
    return CorrelationQuery(
        names=tuple(names), columns=tuple(columns), low=tuple(map(float, low)), high=tuple(map(float, high))
    )


def _of_schema(schema: TableSchema) -> dict[str, tuple[str, tuple[float, float] | None]]:
    """The numbers by name: the column of the app, and its bounds."""
    numbers: dict[str, tuple[str, tuple[float, float] | None]] = {
        one.name: (one.name, (one.low, one.high)) for one in schema.columns if one.kind == "number"
    }
    if not schema.classes:
        numbers[schema.target] = "y", schema.bounds["y"]
    return numbers


def _no_number(name: str, schema: TableSchema, numbers: Sequence[str]) -> ConfigurationError:
    columns = (*(one.name for one in schema.columns), schema.target)
    if name not in columns:
        return ConfigurationError(f"there is no column {nearest(name, columns)}", check="no-such-column")
    return ConfigurationError(
        f"{name} is no number, and has no correlation; the numbers are {', '.join(numbers) or 'none'}. For two "
        "categories there is --crosstab, for a number in groups --by",
        check="no-number",
    )
