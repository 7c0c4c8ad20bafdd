"""A regression as a person or a program reads it: a table, CSV, JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fedcore.data.regression.newton import Regression
from fedcore.data.reports.report import csv_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENOUGH_SITES: Final = 10
"""With fewer sites a variance between them is a rough estimate."""


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
        """As `ColumnsReport.lines`; a Cox regression's have the ratio of hazards after the coefficient."""
        lines = self._lines()
        if self.regression.family == "cox":
            ratios = ["exp(coef)", *(f"{_ratio(row[1]):.6g}" for row in self.rows())]
            lines = [[*line[:2], ratio, *line[2:]] for line, ratio in zip(lines, ratios, strict=True)]
        return lines

    def _lines(self) -> list[list[str]]:
        letter = self.regression.letter
        lines = [["term", "coef", "std err", letter, f"P>|{letter}|", "[0.025", "0.975]"]]
        for term, estimate, error, statistic, p, low, high in self.rows():
            lines.append(
                [term, f"{estimate:.6g}", f"{error:.6g}", f"{statistic:.3f}", f"{p:.3f}", f"{low:.6g}", f"{high:.6g}"]
            )
        return lines

    def notes(self) -> list[str]:
        """As `ColumnsReport.notes`."""
        r = self.regression
        clients = f"{r.clients} clients" if r.clients == r.nodes else f"{r.clients} of {r.nodes} clients"
        why = f"since a value is missing{', or a time is below 0' if r.family == 'cox' else ''}"
        left_out = f"; {r.missing} more are left out, {why}" if r.missing else ""
        spread = f", scale {r.dispersion:.6g}" if r.family == "linear" else ""
        if r.family == "cox":
            at = f"at {r.times} times" if r.times else f"in risk sets of {r.sites} sites"
            return [
                f"Cox regression: {r.rows} rows of {clients}, {r.events} of them with {r.target} = 1, {at}{left_out}",
                f"partial log-likelihood {r.log_likelihood:.6g} (Efron); {r.queries} queries",
            ]
        if r.site_variance is not None:
            return [f"{r.family} regression of {r.target}: {r.rows} rows of {clients}{left_out}", *self._random_notes()]
        spread += f"; {r.sites} sites have intercepts of their own" if r.sites else ""
        return [
            f"{r.family} regression of {r.target}: {r.rows} rows of {clients}{left_out}",
            f"log-likelihood {r.log_likelihood:.6g}, deviance {r.deviance:.6g}, "
            f"{r.degrees} residual degrees of freedom{spread}; {r.queries} queries",
        ]

    def _random_notes(self) -> Iterator[str]:
        r = self.regression
        between = r.site_variance or 0.0
        name, within = (
            ("REML log-likelihood", f", within {r.dispersion:.6g}") if r.family == "linear" else ("log-likelihood", "")
        )
        yield f"{name} {r.log_likelihood:.6g}; {r.queries} queries"
        yield f"random intercepts of {r.sites} sites: variance between sites {between:.6g}{within}"
        if not between:
            yield "the sites differ by no more than chance explains: these are the estimates without effects of sites"
        if r.sites < ENOUGH_SITES:
            yield (
                f"warning: {r.sites} sites tell little of how sites differ, and with fewer than {ENOUGH_SITES} errors "
                "and p are too small; --site-effects fixed needs no such estimate"
            )

    def csv(self) -> str:
        """As `ColumnsReport.csv`."""
        headings = ["term", "coefficient", "standard_error", self.regression.letter, "p", "low", "high"]
        return csv_text([headings, *self.rows()])

    def document(self) -> dict[str, Any]:
        """The table and the numbers below it, None if there is none."""
        r = self.regression
        names = ("coefficient", "standard_error", "statistic", "p", "low", "high")
        return {
            "family": r.family,
            "target": r.target,
            "terms": {
                row[0]: {
                    **{name: _finite(value) for name, value in zip(names, row[1:], strict=True)},
                    **({"ratio": _finite(_ratio(row[1]))} if r.family == "cox" else {}),
                }
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
            "sites": r.sites or None,
            "site_variance": r.site_variance,
            **({"events": r.events, "times": r.times or None} if r.family == "cox" else {}),
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


def _ratio(coefficient: float) -> float:
    return math.exp(min(coefficient, 700.0))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
