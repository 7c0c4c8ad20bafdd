"""Times until an event on a grid that all sites know beforehand, and groups of times that hold enough events.

A time counts as the next point of the grid at or after it, so that whole numbers on a grid of unit width stay what
they are. A row whose time lies beyond the grid is at risk at all of its points, and its event does not count. Points
are joined until each group of them has `LEAST_IN_CELL` events: nothing of fewer is shown, or asked for in a
regression.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.data.statistics import LEAST_IN_CELL, column_values
from fedcore.errors import AppError, ConfigurationError
from fedcore.system.plain_json import NO_OTHER_KEYS

Array: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]

MOST_CELLS: Final = 4096
FINE: Final = 256
"""Cells of a grid at least, if nobody says how many, and if whole numbers are to lie on it."""
_NEAR: Final = 1e-3
"""The share of a cell within which a time lies on a point: columns of float32 are no finer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalTimes:
    """Columns with times and events, and the grid; raises ConfigurationError for one that cannot be.

    time, event: columns of the app; the event is 1, or 0 for a row that is censored.
    time_name, event_name: in the output.
    unit: what the times are multiplied by.
    high: the last point of the grid.
    cells: how many cells there are between 0 and `high`, all of the same width.
    groups: label and condition of each group of rows, as in `column_values`; a row of none of them is left out. The
        condition "" stands for all rows.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    time: str
    event: str
    time_name: str
    event_name: str
    high: float
    cells: int
    unit: float = 1.0
    groups: tuple[tuple[str, str], ...] = (("all", ""),)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.high) and self.high > 0 and self.unit > 0):
            raise ConfigurationError(
                f"the times in {self.time_name} are counted from 0 to {self.high:g}; the upper bound has to be above 0",
                check="time-bounds",
            )
        if not 1 <= self.cells <= MOST_CELLS:
            raise ConfigurationError(
                f"times are counted in 1 to {MOST_CELLS} cells (--bins), not {self.cells}", check="time-cells"
            )
        if not self.groups or len(dict(self.groups)) < len(self.groups):
            raise ConfigurationError("two groups of rows have the same name, or there are none")

    @property
    def width(self) -> float:
        """Of a cell."""
        return self.high / self.cells

    @property
    def points(self) -> Array:
        """The times that there are, from 0 to `high`, float64 [cells + 1]."""
        return np.arange(self.cells + 1) * self.high / self.cells

    def cells_of(self, time: Array) -> Indices:
        """The point that each time counts as, int64 [n]; `cells` + 1 for a time beyond the grid."""
        exact = time * self.cells / self.high
        return np.minimum(np.maximum(np.ceil(exact - _NEAR), 0), self.cells + 1).astype(np.int64)

    def off_grid(self, time: Array) -> int:
        """How many times within the grid lie between its points."""
        exact = time * self.cells / self.high
        return int(np.count_nonzero((np.abs(exact - np.round(exact)) > _NEAR) & (exact <= self.cells)))

    def rows(self, columns: Mapping[str, ArrayLike]) -> SurvivalRows:
        """A site's rows; raises AppError for a column that is missing, or holds no numbers."""
        time, event = number_column(columns, self.time) * self.unit, number_column(columns, self.event)
        conditions = [number_column(columns, condition) for _, condition in self.groups if condition]
        if len({len(column) for column in (time, event, *conditions)}) > 1:
            raise AppError("the columns of times, events and groups have different numbers of rows", check="other-rows")
        group = np.full(len(time), 0 if not conditions else -1)
        for number, meets in enumerate(conditions):
            group[meets == 1] = number
        present = np.isfinite(time) & np.isfinite(event) & (group >= 0)
        negative = present & (time < 0)
        return SurvivalRows(time=time, event=event, group=group, used=present & ~negative, negative=negative)

    def count(self, rows: SurvivalRows, used: NDArray[np.bool_]) -> Array:
        """How many of a site's used rows have an event, and how many are censored, float64 [groups, 2, cells + 2]."""
        shape = len(self.groups), 2, self.cells + 2
        cell = self.cells_of(rows.time[used])
        censored = self.censored(rows.event[used], cell)
        flat = np.ravel_multi_index((rows.group[used], censored.astype(np.int64), cell), shape)
        return np.bincount(flat, minlength=math.prod(shape)).reshape(shape).astype(np.float64)

    def censored(self, event: Array, cell: Indices) -> NDArray[np.bool_]:
        """Of each row, whether no event of it counts [n]."""
        return np.asarray((event != 1) | (cell > self.cells), np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalRows:
    """A site's rows, [n] each. group: its number, -1 for none. used: rows that count. negative: times below 0."""

    time: Array
    event: Array
    group: Indices
    used: NDArray[np.bool_]
    negative: NDArray[np.bool_]


def number_column(columns: Mapping[str, ArrayLike], name: str) -> Array:
    """A column, or what a condition says of its rows, float64 [n]; raises AppError."""
    try:
        return np.asarray(column_values(columns, name), np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise AppError(
            f"column {name!r} holds values that are no numbers; give each of its categories a number",
            check="not-numbers",
        ) from None


def fine_cells(high: float) -> int:
    """Cells of a grid on which whole numbers lie, if there are not too many of them."""
    if not (high == round(high) and 1 <= high <= MOST_CELLS):
        return FINE
    return round(high) * max(1, FINE // round(high))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeGroups:
    """Points of a grid that are joined: J groups, each with enough events; J = 0 if there are too few.

    ends: the last point of each group, at which its events count [J]; later events count as censored.
    limits: for each group, up to which point rows that are censored are not at risk in it any more [J].
    """

    __pydantic_config__ = NO_OTHER_KEYS

    ends: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()

    @classmethod
    def of(cls, events: Array, censored: Array, least: int = LEAST_IN_CELL) -> TimeGroups:
        """The groups of these counts of rows, [cells + 2] each.

        Every group has `least` events or more, and as many rows are censored between two of them, or none are: these
        wait for the others. A row that is censored before half of a group's events is not at risk in it. The last
        events are of no group if they are fewer.
        """
        ends, total = [], 0.0
        for cell in np.flatnonzero(events).tolist():
            total += events[cell]
            if total >= least:
                ends.append(cell)
                total = 0.0
        while ends:
            limits, waiting = _limits(ends, events, censored, least)
            rest = events[ends[-1] + 1 :].sum()
            if not 0 < rest + waiting < least:
                return cls(ends=tuple(ends), limits=tuple(limits))
            if waiting:  # those who are left would be too few
                ends.pop()
            else:
                ends[-1] = int(np.flatnonzero(events)[-1])
        return cls()

    def at_risk(self, cell: Indices, censored: NDArray[np.bool_]) -> tuple[Indices, NDArray[np.bool_]]:
        """In how many groups each row is at risk, the first ones, and whether its event is in the last of these [n]."""
        ends, limits = np.asarray(self.ends, np.int64), np.asarray(self.limits, np.int64)
        until = np.searchsorted(ends, cell)
        died = ~censored & (until < len(ends))
        stays = np.where(censored, np.searchsorted(limits, cell), len(ends))
        return np.where(died, until + 1, stays), died

    def counts(self, events: Array, censored: Array) -> tuple[Array, Array]:
        """Rows at risk and events of each group, [J] each, out of those of each point, [cells + 2] each."""
        cell, size = np.arange(len(events)), len(self.ends)
        of_events, died = self.at_risk(cell, np.zeros(len(cell), np.bool_))
        of_censored, _ = self.at_risk(cell, np.ones(len(cell), np.bool_))
        groups = np.bincount(of_events, events * died, size + 1)
        rows = np.bincount(of_events, events, size + 1) + np.bincount(of_censored, censored, size + 1)
        return np.asarray(np.cumsum(rows[::-1])[::-1][1:], np.float64), np.asarray(groups[1:], np.float64)


def _limits(ends: list[int], events: Array, censored: Array, least: int) -> tuple[list[int], float]:
    """The limits of groups that end so, and how many censored rows are at risk in all of them."""
    happened, left = np.cumsum(events), np.concatenate(([0.0], np.cumsum(censored)))
    limits: list[int] = []
    limit, away, earlier = -1, 0.0, 0.0
    for end in ends:
        middle = int(np.searchsorted(happened, (earlier + happened[end]) / 2))
        earlier = happened[end]
        if left[middle] - away >= least:
            limit, away = middle - 1, left[middle]
        limits.append(limit)
    return limits, float(left[-1] - away)


def pieces(length: int, room: int) -> list[tuple[int, int]]:
    """First and last place + 1 of each part of so many numbers that have room in a query."""
    return [(first, min(first + room, length)) for first in range(0, length, room)]
