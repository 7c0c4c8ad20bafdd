"""A table one: the columns of a table in each group of rows, as epidemiologists print it, out of sums over sites.

Every number comes from `Statistics` of columns that are restricted to a group ("age | sex=male"). A number shows mean,
deviation and quartiles, a category the rows of each value. Tests compare the groups: Welch's t-test of two, an analysis
of variance of more, and Pearson's chi-squared test of counts, as scipy has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.data.reports.report import csv_text
from fedcore.data.reports.statistics_report import of_clients
from fedcore.data.statistics import CONDITION, LEAST_IN_CELL, Column, Statistics
from fedcore.data.tables import TableColumn, TableSchema
from fedcore.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TARGET: Final = "y"
"""The column of the target's values, or of the numbers of its classes."""
_TRUTH: Final = ("no", "yes")
"""Of a boolean column: 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows that are counted together. label: as it is shown. condition: that its rows meet; "" for all rows."""

    label: str
    condition: str

    def of(self, name: str) -> str:
        """The name of a column in the rows of this group."""
        return f"{name}{CONDITION}{self.condition}" if self.condition else name


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
        return (RowGroup(label="all", condition=""), *(self._values() if self.by else ()))

    def _values(self) -> Iterator[RowGroup]:
        if self.by == self.schema.target and self.schema.classes:
            for number, label in enumerate(self.schema.classes):
                yield RowGroup(label=f"{self.by} = {label}", condition=f"{TARGET}={number}")
            return
        column = next((one for one in self.schema.columns if one.name == self.by), None)
        if column is None or column.kind == "number":
            names = [one.name for one in self.schema.columns if one.kind != "number"]
            names += [self.schema.target] if self.schema.classes else []
            raise ConfigurationError(
                f"the values of {self.by!r} make no groups; name one of {', '.join(names) or 'no column'}",
                check="no-groups",
            )
        for number, label in enumerate(column.categories or _TRUTH):
            value = label if column.categories else number
            yield RowGroup(label=f"{self.by} = {label}", condition=f"{self.by}={value}")

    def visible_columns(self) -> tuple[TableColumn, ...]:
        """The columns of the table, the target as the last one, without the one that makes the groups."""
        schema = self.schema
        if schema.classes:
            target = TableColumn(name=schema.target, kind="category", categories=schema.classes)
        else:
            target = TableColumn(name=schema.target, kind="number", low=schema.target_low, high=schema.target_high)
        return tuple(one for one in (*schema.columns, target) if one.name != self.by)

    def features(self, column: TableColumn) -> tuple[str, ...]:
        """The names under which the sites have a column: one, or one for each of its values."""
        if column.name != self.schema.target:
            return column.features
        return tuple(f"{TARGET}={number}" for number in range(len(self.schema.classes))) or (TARGET,)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Of everything that has to be asked for, by name."""
        unit, classes = self.schema.target_unit, len(self.schema.classes)
        ends = (0.0, classes - 1.0) if classes else (self.schema.target_low / unit, self.schema.target_high / unit)
        ranges = {group.of(TARGET): ends for group in self.groups()}  # every row has a target
        for column in self.visible_columns():
            scale = unit if column.name == self.schema.target else 1.0
            pair = (column.low / scale, column.high / scale) if column.kind == "number" else (0.0, 1.0)
            ranges |= {group.of(name): pair for group in self.groups() for name in self.features(column)}
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

    few: whether some number is not shown since it is of fewer than LEAST_IN_CELL rows.
    """

    name: str
    values: tuple[str, ...]
    counts: tuple[tuple[float, ...], ...]
    total: tuple[float, ...]
    p: float
    few: bool

    def lines(self) -> list[list[str]]:
        """Its lines of the table."""
        lines = [[f"{self.name}, n (%)", *[""] * len(self.total), p_text(self.p), ""]]
        for value, counts in zip(self.values, self.counts, strict=True):
            pairs = zip(counts, self.total, strict=True)
            cells = [_count(n) if math.isnan(n) or not total else f"{n:.0f} ({n / total:.1%})" for n, total in pairs]
            lines.append([f"  {value}", *cells, "", ""])
        return lines

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

    rows: of each group, 0 also for fewer than LEAST_IN_CELL. clients: that answered. cohort: clients that were asked.
    """

    groups: tuple[str, ...]
    rows: tuple[float, ...]
    columns: tuple[NumberRow | CategoryRow, ...]
    clients: int
    cohort: int

    @classmethod
    def of(cls, question: TableOneQuestion, statistics: Statistics) -> TableOne:
        """The answer to a question, without noise."""
        groups, columns = question.groups(), statistics.columns
        rows: list[NumberRow | CategoryRow] = []
        for column in question.visible_columns():
            features = question.features(column)
            unit = question.schema.target_unit if column.name == question.schema.target else 1.0
            if column.kind == "number":
                rows.append(_number(column.name, [columns[group.of(features[0])] for group in groups], unit))
            else:
                counts = np.array([[_ones(columns[group.of(name)]) for group in groups] for name in features])
                total = np.array([columns[group.of(features[0])].count for group in groups])
                rows.append(_category(column, counts, total))
        return cls(
            groups=tuple(group.label for group in groups),
            rows=tuple(columns[group.of(TARGET)].count for group in groups),
            columns=tuple(rows),
            clients=statistics.clients,
            cohort=statistics.asked,
        )

    def lines(self) -> list[list[str]]:
        """As `ColumnsReport.lines`: a line for each number, and one for each value of a category."""
        lines = [["", *self.groups, "p", "SMD"], ["rows", *map(_count, self.rows), "", ""]]
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
        return [
            *notes,
            f"- : not shown, since it is of fewer than {LEAST_IN_CELL} rows, or would tell such a number; quartiles "
            "are exact to a cell of the histogram (--bins)",
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
        answer: dict[str, Any] = _plain({**head, "columns": columns})
        return answer

    def draw(self, figure: Figure) -> None:
        """The share of each value, or the mean with its deviation, in each group: a panel for each column."""
        shown = self.groups[1:] or self.groups
        first = len(self.groups) - len(shown)
        figure.set_size_inches(6.5, 0.7 + 0.35 * len(shown) * len(self.columns))
        for axes, column in zip(figure.subplots(len(self.columns), 1, squeeze=False).flat, self.columns, strict=True):
            column.draw(axes, first)
            axes.set_yticks(range(len(shown)), shown, fontsize="x-small")
            axes.invert_yaxis()
            axes.tick_params(axis="x", labelsize="x-small")
            axes.set_title(column.name, fontsize="small", loc="left")


def _ones(column: Column) -> float:
    """How many of a column's values, each 0 or 1, are 1."""
    return round((column.first + column.count) / 2)


def _number(name: str, columns: Sequence[Column], unit: float) -> NumberRow:
    from scipy.stats import ttest_ind_from_stats

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
        count=tuple(one.count for one in columns),
        missing=tuple(one.missing for one in columns),
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


def _category(column: TableColumn, counts: NDArray[np.float64], rows: NDArray[np.float64]) -> CategoryRow:
    """Args: counts: rows of each value in each group, [values, groups]. rows: of each group, [groups]."""
    values = column.categories or _TRUTH
    if not column.categories:
        counts = np.stack([rows - counts[0], counts[0]])
    missing = rows - counts.sum(axis=0)
    hidden = _hidden(np.vstack([counts, missing]))[:-1]
    p = math.nan
    used = counts[:, 1:]
    if used.shape[1] >= 2 and not hidden.any():
        p = _chi_squared(used)
    return CategoryRow(
        name=column.name,
        values=values,
        counts=tuple(tuple(row) for row in np.where(hidden, np.nan, counts).tolist()),
        total=tuple(counts.sum(axis=0).tolist()),
        p=p,
        few=bool(hidden.any()),
    )


def _hidden(counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which numbers are not shown: small ones, and in each group and row the next one if a small one would follow.

    counts: [values, groups], the first group being all rows.
    """
    few = (counts > 0) & (counts < LEAST_IN_CELL)
    hidden = few.copy()
    while True:
        before = hidden.copy()
        for lines, hides in ((counts.T, hidden.T), (counts, hidden)):
            for line, hide in zip(lines, hides, strict=True):
                if hide.sum() == 1 and (~hide & (line > 0)).any():
                    hide[np.flatnonzero(~hide & (line > 0))[np.argmin(line[~hide & (line > 0)])]] = True
        if (hidden == before).all():
            return hidden


def _chi_squared(counts: NDArray[np.float64]) -> float:
    from scipy.stats import chi2_contingency

    used = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    return float(chi2_contingency(used, correction=False).pvalue) if min(used.shape) >= 2 else math.nan


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
