"""A table one: the columns of a table in each group of rows, as epidemiologists print it, out of sums over sites.

Every number comes from `Statistics` of columns that are restricted to a group ("age | sex=male"). A number shows mean,
deviation and quartiles, a category the rows of each value. Tests compare the groups: Welch's t-test of two, an analysis
of variance of more, and Pearson's chi-squared test of counts, as scipy has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.reports.chi_squared import chi_squared
from fedcore.data.reports.report import csv_text
from fedcore.data.reports.row_groups import (
    TARGET,
    TRUTH,
    RowGroup,
    all_columns,
    column_features,
    groups_of,
    ones,
    target_bounds,
    united,
)
from fedcore.data.reports.small_numbers import hidden_in_groups, small
from fedcore.data.reports.statistics_report import of_clients
from fedcore.data.statistics import LEAST_IN_CELL, Column, Statistics
from fedcore.data.tables import TableColumn, TableSchema

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOneQuestion:
    """What is asked for a table one.

    schema: of the table, with the columns that are shown.
    by: the column whose values are the groups; "" for all rows together.
    """

    schema: TableSchema
    by: str = ""

    def __post_init__(self) -> None:
        self.groups()  # raises for a column that makes none

    def groups(self) -> tuple[RowGroup, ...]:
        """All rows, and those of each value; raises ConfigurationError for a column whose values are no groups."""
        groups = groups_of(self.schema, self.by) if self.by else ()
        named = (RowGroup(label=f"{self.by} = {one.label}", condition=one.condition) for one in groups)
        return (RowGroup(label="overall", condition=""), *named)

    def visible_columns(self) -> tuple[TableColumn, ...]:
        """The columns of the table, the target as the last one, without the one that makes the groups."""
        return tuple(one for one in all_columns(self.schema) if one.name != self.by)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Of everything that has to be asked for, by name."""
        unit = self.schema.target_unit
        ranges = {group.of(TARGET): target_bounds(self.schema) for group in self.groups()}
        for column in self.visible_columns():
            scale = unit if column.name == self.schema.target else 1.0
            pair = (column.low / scale, column.high / scale) if column.kind == "number" else (0.0, 1.0)
            ranges |= {group.of(name): pair for group in self.groups() for name in column_features(self.schema, column)}
        return ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRow:
    """A number in each group: [groups] each. quartiles are exact to a cell of the histogram, [groups, 3].

    difference: the largest standardised difference of the means of two groups. p: of the test that all means are equal.
    """

    name: str
    count: tuple[float, ...]
    missing: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    quartiles: tuple[tuple[float, ...], ...]
    difference: float
    p: float

    def lines(self) -> list[list[str]]:
        """Its lines of the table."""
        cells = [f"{_figure(mean)} ({_figure(std)})" for mean, std in zip(self.mean, self.std, strict=True)]
        thirds = [f"{_figure(b)} [{_figure(a)}, {_figure(c)}]" for a, b, c in self.quartiles]
        return [
            [f"{self.name}, mean (SD)", *cells, p_text(self.p), _figure(self.difference)],
            ["  median [Q1, Q3]", *thirds, "", ""],
            *([["  missing", *map(_count, self.missing), "", ""]] if any(self.missing) else []),
        ]

    def draw(self, axes: Axes, first: int) -> None:
        """Means and deviations of the groups from `first` on."""
        axes.errorbar(self.mean[first:], range(len(self.mean) - first), xerr=self.std[first:], fmt="o", capsize=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRow:
    """How many rows of each group have each value, [values, groups]; NaN for a number that is not shown.

    missing, total: rows of each group without a value, and with one; NaN if they are not shown.
    few: whether some number is not shown since it is of fewer than LEAST_IN_CELL rows.
    """

    name: str
    values: tuple[str, ...]
    counts: tuple[tuple[float, ...], ...]
    missing: tuple[float, ...]
    total: tuple[float, ...]
    p: float
    few: bool

    def lines(self) -> list[list[str]]:
        """Its lines of the table."""
        lines = [[f"{self.name}, n (%)", *[""] * len(self.total), p_text(self.p), ""]]
        for value, counts in zip(self.values, self.counts, strict=True):
            pairs = zip(counts, self.total, strict=True)
            cells = [f"{n:.0f} ({n / total:.1%})" if n >= 0 and total > 0 else _count(n) for n, total in pairs]
            lines.append([f"  {value}", *cells, "", ""])
        return [*lines, *([["  missing", *map(_count, self.missing), "", ""]] if any(self.missing) else [])]

    def draw(self, axes: Axes, first: int) -> None:
        """Shares of the values in the groups from `first` on, one after the other; what is not shown is a gap."""
        shares = np.nan_to_num(np.array(self.counts)[:, first:] / np.maximum(np.array(self.total)[first:], 1.0))
        for value, share, before in zip(self.values, shares, np.cumsum(shares, axis=0) - shares, strict=True):
            axes.barh(range(len(share)), share, left=before, label=value)
        axes.set_xlim(0.0, 1.0)
        axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOne:
    """The whole table.

    rows: of each group, 0 also for fewer than LEAST_IN_CELL; the first group has the rows of all others.
    left_out: rows of no group, or of one of too few rows; 1 to 4 of them as 5.
    clients: that answered.
    cohort: clients that were asked.
    """

    groups: tuple[str, ...]
    rows: tuple[float, ...]
    columns: tuple[NumberRow | CategoryRow, ...]
    left_out: float
    clients: int
    cohort: int

    @classmethod
    def of(cls, question: TableOneQuestion, statistics: Statistics) -> TableOne:
        """The answer to a question, without noise."""
        groups, columns = question.groups(), statistics.columns

        def in_groups(name: str) -> list[Column]:
            """Overall and in each group; a remainder of few rows would follow from an overall that has it."""
            overall, *parts = (columns[group.of(name)] for group in groups)
            return [united(parts, overall), *parts] if parts else [overall]

        sizes = np.array([one.count for one in in_groups(TARGET)])
        left_out = round(columns[TARGET].count - sizes[0])
        rows: list[NumberRow | CategoryRow] = []
        for column in question.visible_columns():
            features = column_features(question.schema, column)
            unit = question.schema.target_unit if column.name == question.schema.target else 1.0
            if column.kind == "number":
                rows.append(_number(column.name, in_groups(features[0]), sizes, unit))
            else:
                rows.append(_category(column, [in_groups(name) for name in features], sizes))
        return cls(
            groups=tuple(group.label for group in groups),
            rows=tuple(sizes.tolist()),
            columns=tuple(rows),
            left_out=LEAST_IN_CELL if 0 < left_out < LEAST_IN_CELL else left_out,
            clients=statistics.clients,
            cohort=statistics.asked,
        )

    def lines(self) -> list[list[str]]:
        """As `ColumnsReport.lines`: a line for each number, and one for each value of a category."""
        lines = [["", *self.groups, "p", "SMD"], ["n", *map(_count, self.rows), "", ""]]
        for column in self.columns:
            lines += column.lines()
        return lines if len(self.groups) > 1 else [line[:2] for line in lines]  # nothing to compare

    def notes(self) -> list[str]:
        """As `ColumnsReport.notes`."""
        notes = [of_clients(self.clients, self.cohort)]
        if len(self.groups) > 1:
            notes.append(
                "p: Welch's t-test of two groups, analysis of variance of more, chi-squared test of counts; SMD: "
                "largest standardised difference of two means"
            )
            more = f"; {self.left_out:.0f} more are in none, or in one of too few" if self.left_out else ""
            notes.append(f"overall has the rows of the groups{more}")
        return [
            *notes,
            f"- : not shown, since it is of fewer than {LEAST_IN_CELL} rows, or would tell such a number; quartiles "
            "are exact to a cell of the histogram (--bins); % of rows that have a value",
        ]

    def csv(self) -> str:
        """As `ColumnsReport.csv`, with the digits of the table."""
        return csv_text([cell.strip() for cell in line] for line in self.lines())

    def document(self) -> dict[str, Any]:
        """All numbers, None for one that is not shown or not known."""
        columns = {
            one.name: {
                "kind": "number" if isinstance(one, NumberRow) else "category",
                **{key: getattr(one, key) for key in type(one).__slots__ if key != "name"},
            }
            for one in self.columns
        }
        head = {"clients": self.clients, "asked": self.cohort, "groups": self.groups, "rows": self.rows}
        head["left_out"] = self.left_out
        answer: dict[str, Any] = _plain({**head, "columns": columns})
        return answer

    def draw(self, figure: Figure) -> None:
        """The share of each value, or the mean with its deviation, in each group: a panel for each column."""
        labels = self.groups[1:] or self.groups
        first = len(self.groups) - len(labels)
        figure.set_size_inches(6.5, 0.7 + 0.35 * len(labels) * len(self.columns))
        for axes, column in zip(figure.subplots(len(self.columns), 1, squeeze=False).flat, self.columns, strict=True):
            column.draw(axes, first)
            axes.set_yticks(range(len(labels)), labels, fontsize="x-small")
            axes.invert_yaxis()
            axes.tick_params(axis="x", labelsize="x-small")
            axes.set_title(column.name, fontsize="small", loc="left")


def _number(name: str, columns: Sequence[Column], sizes: NDArray[np.float64], unit: float) -> NumberRow:
    """Args: sizes: rows of each group, [groups]."""
    from scipy.stats import ttest_ind_from_stats

    numbers, hidden = _with_missing(np.array([[one.count for one in columns]]), columns, sizes)
    present, missing = np.where(hidden, np.nan, numbers).tolist()

    compared = [one for one in columns[1:] if one.count >= 2]
    count, mean = (np.array([getattr(one, what) for one in compared]) for what in ("count", "mean"))
    variance = np.array([one.variance * one.count / (one.count - 1) for one in compared])
    p, difference = math.nan, math.nan
    if len(compared) == len(columns) - 1 >= 2 and variance.max() > 0:
        pairs = list(combinations(range(len(compared)), 2))
        gaps = [abs(mean[a] - mean[b]) / math.sqrt((variance[a] + variance[b]) / 2 or math.nan) for a, b in pairs]
        difference = float(np.nanmax(gaps))
        if len(compared) == 2:
            result = ttest_ind_from_stats(
                mean[0], math.sqrt(variance[0]), count[0], mean[1], math.sqrt(variance[1]), count[1], equal_var=False
            )
            p = float(result.pvalue)
        else:
            p = _analysis_of_variance(count, mean, variance)
    return NumberRow(
        name=name,
        count=tuple(present),
        missing=tuple(missing),
        mean=tuple(one.mean * unit for one in columns),
        std=tuple(_sample_std(one) * unit for one in columns),
        quartiles=tuple(tuple(one.quantile(q) * unit for q in (0.25, 0.5, 0.75)) for one in columns),
        difference=difference,
        p=p,
    )


def _sample_std(column: Column) -> float:
    return math.sqrt(column.variance * column.count / (column.count - 1)) if column.count >= 2 else math.nan


def _analysis_of_variance(
    count: NDArray[np.float64], mean: NDArray[np.float64], variance: NDArray[np.float64]
) -> float:
    """P of the F-test that all groups have one mean, from their counts, means and sample variances, [groups] each."""
    from scipy.special import fdtrc

    between, within = len(count) - 1, float(count.sum()) - len(count)
    middle = (count @ mean) / count.sum()
    ratio = (count @ (mean - middle) ** 2 / between) / ((count - 1) @ variance / within)
    return float(fdtrc(between, within, ratio))


def _category(column: TableColumn, parts: Sequence[Sequence[Column]], sizes: NDArray[np.float64]) -> CategoryRow:
    """Args: parts: each value in each group, [values][groups], or 1 in each group. sizes: rows of each group."""
    counts = np.array([[ones(one) for one in columns] for columns in parts])
    if not column.categories:
        counts = np.stack([np.array([one.count for one in parts[0]]) - counts[0], counts[0]])
    numbers, hidden = _with_missing(counts, parts[0], sizes)
    p = math.nan
    if counts.shape[1] > 2 and not hidden[:-1].any():
        p = chi_squared(counts[:, 1:]).p
    total = np.where(hidden[-1], np.nan, counts.sum(axis=0))
    visible = np.where(hidden, np.nan, numbers).tolist()
    return CategoryRow(
        name=column.name,
        values=column.categories or TRUTH,
        counts=tuple(tuple(row) for row in visible[:-1]),
        missing=tuple(visible[-1]),
        total=tuple(total.tolist()),
        p=p,
        few=bool(hidden.any()),
    )


def _with_missing(
    counts: NDArray[np.float64], columns: Sequence[Column], sizes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Counts [values, groups] with the rows that have no value as the last line, and which are not shown.

    Args:
        counts: rows of each value.
        columns: one of the column's in each group.
        sizes: rows of each group.
    """
    numbers = np.vstack([counts, sizes - counts.sum(axis=0)])
    # A column of so few values comes without them, and is not the same as one that is missing in all rows.
    empty = np.array(
        [
            one.count == 0 and (one.missing < size or size == LEAST_IN_CELL)
            for one, size in zip(columns, sizes, strict=True)
        ]
    )
    if len(empty) > 1:
        empty[0] = empty.any()  # the sum of the others does not have its values
    return numbers, hidden_in_groups(numbers, small(numbers) | empty)


# --- what is shown --------------------------------------------------------------------------------------------------


def p_text(p: float) -> str:
    """A p-value as it is printed."""
    if math.isnan(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
