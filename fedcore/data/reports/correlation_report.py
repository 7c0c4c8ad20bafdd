"""Correlations as a person or a program reads them: a line for each pair, matrices, a heat map."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.data.correlation.matrix import Correlations
from fedcore.data.reports.report import csv_text
from fedcore.data.reports.statistics_report import of_clients
from fedcore.data.reports.table_one import p_text
from fedcore.data.statistics import LEAST_IN_CELL

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class CorrelationReport:
    """A row for each pair of columns."""

    correlations: Correlations

    def rows(self) -> list[tuple[str, str, float, float, float, float, float]]:
        """Both columns, rows, r, lowest and highest value of the interval of 95 %, and p."""
        c = self.correlations
        rows, r = (np.array(values, np.float64).tolist() for values in (c.rows, c.r))
        columns = zip(itertools.combinations(c.names, 2), rows, r, c.intervals(), c.p_values, strict=True)
        return [(*pair, *numbers, *interval, p) for pair, *numbers, interval, p in columns]

    def lines(self) -> list[list[str]]:
        """As `ColumnsReport.lines`."""
        lines = [["column", "with", "rows", "r", "[0.025", "0.975]", "p"]]
        for first, second, rows, *numbers, p in self.rows():
            number = "-" if math.isnan(rows) else f"{rows:.0f}"
            lines.append([first, second, number, *map(_figure, numbers), p_text(p)])
        return lines

    def notes(self) -> list[str]:
        """As `ColumnsReport.notes`."""
        c = self.correlations
        notes = [
            of_clients(c.clients, c.nodes),
            "Pearson's r of the rows that have a value of both columns, with Fisher's interval; p of the t-test that "
            "it is 0",
        ]
        if None not in c.r:
            return notes
        return [
            *notes,
            f"- : not shown, since it would tell of fewer than {LEAST_IN_CELL} rows; no r but a number of rows: a "
            "column is the same in all of them",
        ]

    def csv(self) -> str:
        """As `ColumnsReport.csv`."""
        return csv_text([["column", "with", "rows", "r", "low", "high", "p"], *self.rows()])

    def document(self) -> dict[str, Any]:
        """Matrices, None if there is no number."""
        c = self.correlations
        low, high = zip(*c.intervals(), strict=True)
        matrices = {"rows": c.matrix(c.rows), "r": c.matrix(c.r, 1.0), "low": c.matrix(low), "high": c.matrix(high)}
        matrices["p"] = c.matrix(c.p_values)
        return {
            "columns": c.names,
            **{
                name: [[value if math.isfinite(value) else None for value in line] for line in matrix.tolist()]
                for name, matrix in matrices.items()
            },
            "clients": c.clients,
            "asked": c.nodes,
        }

    def draw(self, figure: Figure) -> None:
        """A heat map; what is not known is left white."""
        c = self.correlations
        side = 1.8 + 0.5 * len(c.names)
        figure.set_size_inches(side + 1.0, side)
        axes = figure.subplots()
        matrix = c.matrix(c.r, 1.0)
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-1.0, vmax=1.0)
        for (i, j), r in np.ndenumerate(matrix):
            color = "w" if abs(r) > 0.6 else "k"
            text = "-" if math.isnan(r) else f"{r:.2f}"
            axes.text(j, i, text, ha="center", va="center", color=color, fontsize="x-small")
        axes.set_xticks(range(len(c.names)), c.names, rotation=45, ha="right")
        axes.set_yticks(range(len(c.names)), c.names)
        figure.colorbar(image, ax=axes, label="Pearson's r")


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"
