"""A regression as a person or a program reads it: a table, CSV, JSON."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from fedcore.data.regression.newton import Regression


def regression_headings(regression: Regression) -> list[str]:
    """Of the table's columns."""
    letter = "t" if regression.family == "linear" else "z"
    return ["term", "coef", "std err", letter, f"P>|{letter}|", "[0.025", "0.975]"]


def regression_rows(regression: Regression) -> list[tuple[str, float, float, float, float, float, float]]:
    """A row for each coefficient, under `regression_headings`."""
    r = regression
    columns = zip(r.terms, r.coefficients, r.errors, r.statistics, r.p_values, r.intervals(), strict=True)
    return [(*row, *interval) for *row, interval in columns]


def regression_lines(regression: Regression) -> list[list[str]]:
    """The table with its headings, as text."""
    lines = [regression_headings(regression)]
    for term, estimate, error, statistic, p, low, high in regression_rows(regression):
        lines.append(
            [term, f"{estimate:.6g}", f"{error:.6g}", f"{statistic:.3f}", f"{p:.3f}", f"{low:.6g}", f"{high:.6g}"]
        )
    return lines


def regression_notes(regression: Regression) -> list[str]:
    """What is said below the table."""
    r = regression
    clients = f"{r.clients} clients" if r.clients == r.nodes else f"{r.clients} of {r.nodes} clients"
    left_out = f"; {r.missing} more are left out, since a value is missing" if r.missing else ""
    spread = f", scale {r.dispersion:.6g}" if r.family == "linear" else ""
    return [
        f"{r.family} regression of {r.target}: {r.rows} rows of {clients}{left_out}",
        f"log-likelihood {r.log_likelihood:.6g}, deviance {r.deviance:.6g}, "
        f"{r.degrees} residual degrees of freedom{spread}; {r.queries} queries",
    ]


def regression_csv(regression: Regression) -> str:
    """The table."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["term", "coefficient", "standard_error", *regression_headings(regression)[3:4], "p", "low", "high"]
    )
    writer.writerows([_cell(value) for value in row] for row in regression_rows(regression))
    return out.getvalue()


def regression_json(regression: Regression) -> dict[str, Any]:
    """The table and the numbers below it, null if there is none."""
    r = regression
    names = ("coefficient", "standard_error", "statistic", "p", "low", "high")
    return {
        "family": r.family,
        "target": r.target,
        "terms": {
            row[0]: {name: _finite(value) for name, value in zip(names, row[1:], strict=True)}
            for row in regression_rows(r)
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


def _cell(value: str | float) -> str | float:
    return "" if isinstance(value, float) and math.isnan(value) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
