"""A contingency table of two categories over all sites, out of sums of columns that are restricted to rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.reports.chi_squared import ChiSquared, chi_squared
from fedcore.data.reports.report import csv_text
from fedcore.data.reports.row_groups import (
    TARGET,
    RowGroup,
    all_columns,
    column_features,
    groups_of,
    ones,
    target_bounds,
)
from fedcore.data.reports.small_numbers import hidden_in_table, with_totals
from fedcore.data.reports.statistics_report import of_clients
from fedcore.data.statistics import LEAST_IN_CELL, Column, Statistics, StatisticsQuery
from fedcore.data.tables import TableSchema, nearest
from fedcore.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXPECTED = 5.0
"""Below so many rows that are expected in a cell the chi-squared test is rough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrosstabQuestion:
    """Two columns of a schema, whose values are the lines and the columns; raises ConfigurationError for others."""

    schema: TableSchema
    down: str
    across: str

    @classmethod
    def of(cls, schema: TableSchema, names: tuple[str, ...]) -> CrosstabQuestion:
        """Of two names."""
        if len(names) != 2:
            raise ConfigurationError(
                f"--crosstab takes two columns, as in 'stage sex', not {len(names)}; write a name that holds a space "
                "in quotes",
                check="two-columns",
            )
        return cls(schema=schema, down=names[0], across=names[1])

    def __post_init__(self) -> None:
        columns = {one.name: one for one in all_columns(self.schema)}
        for name in (self.down, self.across):
            if name not in columns:
                raise ConfigurationError(f"there is no column {nearest(name, columns)}", check="no-such-column")
            groups_of(self.schema, name)  # raises for numbers
        if self.down == self.across:
            raise ConfigurationError(
                f"a contingency table is of two columns, and {self.down} is named twice", check="same-column"
            )

    def query(self) -> StatisticsQuery:
        """What the clients are asked."""
        inner = [group.of(name) for group in self.groups() for name in self._features(self.down)]
        names = [TARGET, *self._features(self.across), *inner]
        return StatisticsQuery.of(dict.fromkeys(names, (0.0, 1.0)) | self._target(), bins=1, all_rows=True)

    def _target(self) -> dict[str, tuple[float, float]]:
        return {TARGET: target_bounds(self.schema)}

    def groups(self) -> tuple[RowGroup, ...]:
        """The columns of the table."""
        return groups_of(self.schema, self.across)

    def values(self) -> tuple[str, ...]:
        """The lines of the table."""
        return tuple(group.label for group in groups_of(self.schema, self.down))

    def counts(self, statistics: Statistics) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Rows of each pair of values, [down, across], and which columns came empty since they are of few rows."""
        columns = [
            [statistics.columns[group.of(name)] for group in self.groups()] for name in self._features(self.down)
        ]
        counts = _each_value(columns, len(self.values()))
        totals = [[statistics.columns[name]] for name in self._features(self.across)]
        sizes = _each_value(totals, len(self.groups()))[:, 0]
        first = columns[0]
        few = [
            size > 0 and one.count == 0 and (one.missing < size or size == LEAST_IN_CELL)
            for size, one in zip(sizes, first, strict=True)
        ]
        return counts, np.array(few)

    def _features(self, name: str) -> tuple[str, ...]:
        """What the sites have of a column."""
        column = next(one for one in all_columns(self.schema) if one.name == name)
        return column_features(self.schema, column)


def _each_value(columns: Sequence[Sequence[Column]], values: int) -> NDArray[np.float64]:
    """Rows of each value [values, n], out of n columns of each, or of n columns of 0 and 1 for both."""
    counts = np.array([[ones(one) for one in line] for line in columns], np.float64)
    if len(columns) == values:
        return counts
    return np.stack([np.array([one.count for one in columns[0]]) - counts[0], counts[0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Crosstab:
    """The table, its numbers NaN if they are not shown.

    down, across: the columns.
    values, groups: their values.
    counts: rows of each pair with the totals, [values + 1, groups + 1]; totals are without groups of few rows.
    left_out: rows without a value of one of them, 1 to 4 of them as 5.
    test: NaN if a number is not shown, which it would tell.
    rough: how many of the table's cells have fewer than 5 expected rows.
    fisher: p of Fisher's exact test of two values by two with such cells.
    clients, cohort: how many answered, and how many were asked.
    """

    down: str
    across: str
    values: tuple[str, ...]
    groups: tuple[str, ...]
    counts: NDArray[np.float64]
    left_out: float
    test: ChiSquared
    rough: int
    fisher: float
    clients: int
    cohort: int

    @classmethod
    def of(cls, question: CrosstabQuestion, statistics: Statistics) -> Crosstab:
        """The answer to a question."""
        counts, few = question.counts(statistics)
        hidden = hidden_in_table(counts)
        hidden[:, :-1] |= few
        left_out = statistics.columns[TARGET].count - counts.sum()
        test, rough, fisher = ChiSquared(), 0, math.nan
        if not hidden.any():
            test, rough, fisher = chi_squared(counts), _rough(counts), _fisher(counts)
        return cls(
            down=question.down,
            across=question.across,
            values=question.values(),
            groups=tuple(group.label for group in question.groups()),
            counts=np.where(hidden, np.nan, with_totals(counts)),
            left_out=float(LEAST_IN_CELL) if 0 < left_out < LEAST_IN_CELL else float(left_out),
            test=test,
            rough=rough,
            fisher=fisher,
            clients=statistics.clients,
            cohort=statistics.asked,
        )

    @property
    def cramers_v(self) -> float:
        """How strongly the columns depend on each other, from 0 to 1; NaN if the test is."""
        used = self.counts[:-1, :-1]
        smaller = min(int((used.sum(axis=axis) > 0).sum()) for axis in (0, 1))
        return math.sqrt(self.test.statistic / (self.counts[-1, -1] * (smaller - 1))) if smaller > 1 else math.nan

    def shares(self, axis: int) -> NDArray[np.float64]:
        """Of each number in the total of its column (0) or of its line (1), as `counts`; NaN if one is not shown."""
        totals = self.counts[-1:] if axis == 0 else self.counts[:, -1:]
        with np.errstate(invalid="ignore"):
            return self.counts / np.where(totals > 0, totals, np.nan)

    def lines(self) -> list[list[str]]:
        """As `ColumnsReport.lines`, with the share in the column."""
        lines = [[f"{self.down} \\ {self.across}", *self.groups, "total"]]
        for label, counts, shares in zip(self.values, self.counts, self.shares(0), strict=False):
            lines.append([label, *(_cell(n, share) for n, share in zip(counts, shares, strict=True))])
        return [*lines, ["total", *(_cell(n, math.nan) for n in self.counts[-1])]]

    def notes(self) -> list[str]:
        """As `ColumnsReport.notes`."""
        missing = f"; {self.left_out:.0f} more are left out, since a value is missing" if self.left_out else ""
        total = self.counts[-1, -1]
        rows = f"{total:.0f} rows " if total >= 0 else ""
        notes = [f"{rows}{of_clients(self.clients, self.cohort)}{missing}", *self._test_notes()]
        if np.isnan(self.counts).any():
            notes.append(
                f"- : not shown, since it is of fewer than {LEAST_IN_CELL} rows, or would tell such a number, as tests "
                "would; totals are without columns of so few rows"
            )
        return [*notes, "%: of the total of the column"]

    def _test_notes(self) -> Iterator[str]:
        if math.isnan(self.test.p):
            return
        test = self.test
        yield (
            f"Pearson's chi-squared {test.statistic:.4g}, {test.degrees} degrees of freedom, p = {test.p:.4g}; "
            f"Cramer's V {self.cramers_v:.3g}"
        )
        if self.rough:
            exact = "" if math.isnan(self.fisher) else f"; Fisher's exact test: p = {self.fisher:.4g}"
            yield f"fewer than 5 rows are expected in {self.rough} cells, so that the chi-squared test is rough{exact}"

    def csv(self) -> str:
        """A line for each pair, with the shares; the totals as the last ones."""
        lines: list[list[Any]] = [[self.down, self.across, "count", "share_of_column", "share_of_line"]]
        of_column, of_line = self.shares(0).tolist(), self.shares(1).tolist()
        for i, value in enumerate((*self.values, "total")):
            for j, group in enumerate((*self.groups, "total")):
                lines.append([value, group, float(self.counts[i, j]), of_column[i][j], of_line[i][j]])
        return csv_text(lines)

    def document(self) -> dict[str, Any]:
        """All numbers, None for one that is not shown."""
        counts = [[None if math.isnan(n) else n for n in line] for line in self.counts.tolist()]
        return {
            "lines": {"column": self.down, "values": self.values},
            "columns": {"column": self.across, "values": self.groups},
            "counts": [line[:-1] for line in counts[:-1]],
            "line_totals": [line[-1] for line in counts[:-1]],
            "column_totals": counts[-1][:-1],
            "total": counts[-1][-1],
            "left_out": self.left_out,
            "chi_squared": _finite(self.test.statistic),
            "degrees": self.test.degrees,
            "p": _finite(self.test.p),
            "expected_below_5": self.rough,
            "fisher_p": _finite(self.fisher),
            "cramers_v": _finite(self.cramers_v),
            "clients": self.clients,
            "asked": self.cohort,
        }

    def draw(self, figure: Figure) -> None:
        """A heat map of the shares in each column, with the counts; what is not shown is left white."""
        figure.set_size_inches(2.2 + 0.8 * len(self.groups), 1.4 + 0.4 * len(self.values))
        axes = figure.subplots()
        shares = self.shares(0)[:-1, :-1]
        image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        for (i, j), n in np.ndenumerate(self.counts[:-1, :-1]):
            dark = shares[i, j] > 0.6
            axes.text(j, i, "-" if math.isnan(n) else f"{n:.0f}", ha="center", va="center", color="wk"[not dark])
        axes.set_xticks(range(len(self.groups)), self.groups)
        axes.set_yticks(range(len(self.values)), self.values)
        axes.set_xlabel(self.across)
        axes.set_ylabel(self.down)
        figure.colorbar(image, ax=axes, label="share of the column")


def _rough(counts: NDArray[np.float64]) -> int:
    """Cells of which fewer than 5 rows are expected, without lines and columns of no row."""
    used = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    expected = np.outer(used.sum(axis=1), used.sum(axis=0)) / used.sum()
    return int((expected < _EXPECTED).sum())


def _fisher(counts: NDArray[np.float64]) -> float:
    from scipy.stats import fisher_exact

    if counts.shape != (2, 2) or not _rough(counts):
        return math.nan
    return float(fisher_exact(counts.astype(np.int64)).pvalue)


def _cell(count: float, share: float) -> str:
    if math.isnan(count):
        return "-"
    return f"{count:.0f}" if math.isnan(share) else f"{count:.0f} ({share:.1%})"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
