"""A regression as a person or a program reads it: a table, CSV, JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedcore.data.regression.newton import Regression
from fedcore.data.reports.report import csv_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class RegressionReport:
    """A row for each coefficient."""

    regression: Regression

    def rows(self) -> list[tuple[str, float, float, float, float, float, float]]:
        """Term, coefficient, standard error, statistic, p, lowest and highest value of the interval of 95 %."""
        r = self.regression
        columns = zip(r.terms, r.coefficients, r.errors, r.statistics, r.p_values, r.intervals(), strict=True)
        return [(*row, *interval) for *row, interval in columns]

    def lines(self) -> list[list[str]]:
        """As `ColumnsReport.lines`."""
        letter = self._letter()
        lines = [["term", "coef", "std err", letter, f"P>|{letter}|", "[0.025", "0.975]"]]
        for term, estimate, error, statistic, p, low, high in self.rows():
            lines.append(
                [term, f"{estimate:.6g}", f"{error:.6g}", f"{statistic:.3f}", f"{p:.3f}", f"{low:.6g}", f"{high:.6g}"]
            )
        return lines

    def _letter(self) -> str:
        return "t" if self.regression.family == "linear" else "z"

    def notes(self) -> list[str]:
        """As `ColumnsReport.notes`."""
        r = self.regression
        clients = f"{r.clients} clients" if r.clients == r.nodes else f"{r.clients} of {r.nodes} clients"
        left_out = f"; {r.missing} more are left out, since a value is missing" if r.missing else ""
        spread = f", scale {r.dispersion:.6g}" if r.family == "linear" else ""
        return [
            f"{r.family} regression of {r.target}: {r.rows} rows of {clients}{left_out}",
            f"log-likelihood {r.log_likelihood:.6g}, deviance {r.deviance:.6g}, "
            f"{r.degrees} residual degrees of freedom{spread}; {r.queries} queries",
        ]

    def csv(self) -> str:
        """As `ColumnsReport.csv`."""
        headings = ["term", "coefficient", "standard_error", self._letter(), "p", "low", "high"]
        return csv_text([headings, *self.rows()])

    def document(self) -> dict[str, Any]:
        """The table and the numbers below it, None if there is none."""
        r = self.regression
        names = ("coefficient", "standard_error", "statistic", "p", "low", "high")
        return {
            "family": r.family,
            "target": r.target,
            "terms": {
                row[0]: {name: _finite(value) for name, value in zip(names, row[1:], strict=True)}
                for row in self.rows()
            },
            "rows": r.rows,
            "missing": r.missing,
            "clients": r.clients,
            "asked": r.nodes,
            "log_likelihood": _finite(r.log_likelihood),
            "deviance": _finite(r.deviance),
            "residual_degrees": r.degrees,
            "scale": r.dispersion,
            "queries": r.queries,
        }

    def draw(self, figure: Figure) -> None:
        """Coefficients with their intervals, without the intercept."""
        rows = [row for row in self.rows() if row[0] != "Intercept"]
        figure.set_size_inches(6.5, 0.9 + 0.3 * len(rows))
        axes = figure.subplots()
        middle = [row[1] for row in rows]
        ends = [[row[1] - row[5] for row in rows], [row[6] - row[1] for row in rows]]
        axes.errorbar(middle, range(len(rows)), xerr=ends, fmt="o", capsize=3)
        axes.axvline(0.0, linewidth=0.8, color="grey")
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel("coefficient, with its interval of 95 %")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
