"""Columns of times, events and groups by their names, from a table's schema or from bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fedcore.data.regression.formula import Formula, Part
from fedcore.data.statistics import Bounds
from fedcore.data.survival.question import SurvivalQuery
from fedcore.data.survival.times import SurvivalTimes, fine_cells
from fedcore.data.tables import TableSchema, nearest
from fedcore.errors import ConfigurationError

TARGET: Final = "y"
"""The column in which an app has the target of its schema."""
_TRUTH: Final = ("no", "yes")
_WORD: Final = re.compile(r"`([^`]+)`|([^\s,`]+)")


def survival_query(
    text: str, *, by: str = "", bins: int | None = None, bounds: Bounds | None = None, schema: TableSchema | None = None
) -> SurvivalQuery:
    """The question for curves; raises ConfigurationError.

    Args:
        text: the names of the columns with times and events, as in "days died".
        by: the column whose values are the groups, as in "sex" or "C(ward, [0, 1, 2])"; "" for one curve.
        bins: cells of the grid of times; None for a grid on which whole numbers lie, if it has room for them.
        bounds: of the columns; the upper one of the times ends the grid.
        schema: of the app's table; None if the app has none.
    """
    names = [quoted or plain for quoted, plain in _WORD.findall(text)]
    if len(names) != 2:
        raise ConfigurationError(
            f"--survival takes two columns, the time and the event, as in --survival 'days died', not {text!r}; a name "
            "with spaces is written as in `days alive`",
            check="survival-columns",
        )
    groups = row_groups(_part(by, schema), schema) if by else (("all", ""),)
    times = survival_times(names[0], names[1], groups=groups, bins=bins, bounds=bounds, schema=schema)
    return SurvivalQuery(times=times, by=_part(by, schema).column if by else "")


def survival_times(
    time: str,
    event: str,
    *,
    groups: tuple[tuple[str, str], ...],
    bins: int | None,
    bounds: Bounds | None,
    schema: TableSchema | None,
) -> SurvivalTimes:
    """The columns with times and events, and the grid; raises ConfigurationError."""
    time_column, unit = _time_column(time, schema)
    high = _upper_bound(time, bounds, schema)
    return SurvivalTimes(
        time=time_column, event=event_column(event, schema), time_name=time, event_name=event, unit=unit, high=high,
        cells=fine_cells(high) if bins is None else bins, groups=groups,
    )  # fmt: skip


def row_groups(part: Part, schema: TableSchema | None) -> tuple[tuple[str, str], ...]:
    """Label and condition of each value of a category; raises ConfigurationError for a column that is none."""
    name = part.column
    column = None if schema is None else next((one for one in schema.columns if one.name == name), None)
    if schema is not None and name == schema.target and schema.classes:
        return tuple((f"{name} = {one}", f"{TARGET}={number}") for number, one in enumerate(schema.classes))
    if column is not None and column.kind == "category":
        levels = part.levels or column.categories
        if unknown := [level for level in levels if level not in column.categories]:
            raise ConfigurationError(f"{name} has no level {nearest(unknown[0], column.categories)}", check="level")
        return tuple((f"{name} = {level}", f"{name}={level}") for level in levels)
    if column is not None and column.kind == "boolean":
        return tuple((f"{name} = {label}", f"{name}={number}") for number, label in enumerate(_TRUTH))
    if schema is not None and column is None:
        raise _unknown(name, schema)
    if not part.levels:
        raise ConfigurationError(
            f"{name} is no category, or nobody says which values it has, and they have to be the same at all sites; "
            f"list them, as in C({name}, [0, 1, 2])",
            check="no-groups",
        )
    try:
        return tuple((f"{name} = {level}", f"{name}={float(level):g}") for level in part.levels)
    except ValueError:
        raise ConfigurationError(
            f"the values of {name} are numbers, so its groups are too, not {', '.join(part.levels)}", check="level"
        ) from None


def _part(text: str, schema: TableSchema | None) -> Part:
    """A column as it is written after --by."""
    if schema is not None and text in (schema.target, *(one.name for one in schema.columns)):
        return Part(column=text)
    formula = Formula.parse(f"rows ~ {text}")
    if len(formula.terms) != 1 or len(formula.terms[0]) != 1 or formula.terms[0][0].function not in ("", "C"):
        raise ConfigurationError(
            f"--by names one column, as in --by sex or --by 'C(ward, [0, 1, 2])', not {text!r}", check="no-groups"
        )
    return formula.terms[0][0]


def _time_column(name: str, schema: TableSchema | None) -> tuple[str, float]:
    """The app's column, and its unit."""
    if schema is None:
        return name, 1.0
    if name == schema.target and not schema.classes:
        return TARGET, schema.target_unit
    column = next((one for one in schema.columns if one.name == name), None)
    if column is None and name != schema.target:
        raise _unknown(name, schema)
    if column is None or column.kind != "number":
        raise ConfigurationError(f"{name} holds no numbers, so its values are no times", check="no-time")
    return name, 1.0


def event_column(name: str, schema: TableSchema | None) -> str:
    """The app's column of an event; raises ConfigurationError."""
    if schema is None:
        return name
    if name == schema.target and schema.task == "binary":
        return TARGET
    column = next((one for one in schema.columns if one.name == name), None)
    if column is None and name != schema.target:
        raise _unknown(name, schema)
    if column is None or column.kind == "category":
        raise ConfigurationError(
            f"{name} is no column of 0 and 1, so its values are no events; name a boolean column, or the target if it "
            "has two classes",
            check="no-event",
        )
    return name


def _upper_bound(name: str, bounds: Bounds | None, schema: TableSchema | None) -> float:
    pair = bounds.get(name) if isinstance(bounds, Mapping) else bounds
    if pair is None and schema is not None:
        ranges = {one.name: (one.low, one.high) for one in schema.columns}
        pair = (schema.target_low, schema.target_high) if name == schema.target else ranges.get(name)
    if pair is None:
        raise ConfigurationError(
            f"nobody says how long the times in {name} are, and all sites count them on the same grid; give the last "
            f"one, as in --bounds '{name}=0:365'",
            check="no-bounds",
        )
    return pair[1]


def _unknown(name: str, schema: TableSchema) -> ConfigurationError:
    names = [*(one.name for one in schema.columns), schema.target]
    return ConfigurationError(f"there is no column {nearest(name, names)}", check="no-such-column")
