"""Survival curves as a person or a program reads them: a table, CSV, JSON, and the curves with their bands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedcore.data.reports.report import csv_text
from fedcore.data.reports.statistics_report import of_clients
from fedcore.data.reports.table_one import p_text
from fedcore.data.statistics import LEAST_IN_CELL
from fedcore.data.survival.curves import Curve, Survival

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES: Final = 6


@dataclass(frozen=True, slots=True)
class SurvivalReport:
    """A column for each curve."""

    survival: Survival

    def lines(self) -> list[list[str]]:
        """As `ColumnsReport.lines`: rows, events and medians, then some times with the rows at risk and the curve."""
        curves = self.survival.curves
        return [
            ["", *(curve.label for curve in curves)],
            ["rows", *(str(curve.rows) if curve.rows else "-" for curve in curves)],
            ["events", *("-" if curve.few else str(curve.events) for curve in curves)],
            [f"median {self.survival.time} [95 %]", *("-" if curve.few else _median(curve) for curve in curves)],
            ["at risk, S [95 %] at", *("" for _ in curves)],
            *([f"  {time:g}", *(_at(curve, time) for curve in curves)] for time in self._some_times()),
        ]

    def _some_times(self) -> list[float]:
        """About `_LINES` round times up to the last one of a curve."""
        last = max((curve.times[-1] for curve in self.survival.curves if curve.times), default=self.survival.high)
        rough = last / _LINES
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(one for one in (power, 2 * power, 5 * power, 10 * power) if one >= rough)
        return [number * step for number in range(int(last / step * (1 + 1e-9)) + 1)]

    def notes(self) -> list[str]:
        """As `ColumnsReport.notes`."""
        s = self.survival
        notes = [of_clients(s.clients, s.nodes)]
        left_out = [f"{number} rows {why}" for number, why in self._left_out() if number]
        if left_out:
            notes.append(f"left out: {', '.join(left_out)}")
        if s.chi_squared is not None:
            degrees = s.degrees
            notes.append(
                f"log-rank test, of all times: chi-squared {s.chi_squared:.4g}, {degrees} degrees of freedom, p "
                f"{p_text(s.p_value).replace('<', 'below ')}"
            )
        if s.between:
            notes.append(f"{s.between} times count as the next multiple of {s.high / s.cells:g} (--bins)")
        return [
            *notes,
            f"times are joined until {LEAST_IN_CELL} rows have an event, and a curve ends with the last time of so "
            f"many; - : not reached, or not shown, since fewer than {LEAST_IN_CELL} rows are there, or have an event",
        ]

    def _left_out(self) -> tuple[tuple[int, str], ...]:
        s = self.survival
        return (s.missing, "lack a value"), (s.negative, f"with {s.time} below 0")

    def csv(self) -> str:
        """As `ColumnsReport.csv`: a line for each time of each curve."""
        lines: list[list[Any]] = [["group", "time", "at_risk", "events", "survival", "standard_error", "low", "high"]]
        for curve in self.survival.curves:
            columns = zip(curve.times, curve.at_risk, curve.died, curve.survival, curve.errors, strict=True)
            lines += [
                [curve.label, time, round(n), round(d), float(s), float(error), *interval]
                for (time, n, d, s, error), interval in zip(columns, curve.intervals().tolist(), strict=True)
            ]
        return csv_text(lines)

    def document(self) -> dict[str, Any]:
        """The curves and the test, None for a number that there is not."""
        s = self.survival
        return {
            "time": s.time,
            "event": s.event,
            "by": s.by or None,
            "clients": s.clients,
            "asked": s.nodes,
            "missing": s.missing,
            "negative": s.negative,
            "between_points": s.between,
            "grid": {"high": s.high, "cells": s.cells},
            "log_rank": None if s.chi_squared is None else {
                "chi_squared": s.chi_squared, "degrees": s.degrees, "p": s.p_value,
            },
            "curves": {curve.label: _curve(curve) for curve in s.curves},
            "queries": s.queries,
        }  # fmt: skip

    def draw(self, figure: Figure) -> None:
        """The curves with their bands."""
        axes = figure.subplots()
        for curve in (one for one in self.survival.curves if not one.few):
            times = np.concatenate(([0.0], curve.times))
            value = np.concatenate(([1.0], curve.survival))
            low, high = np.concatenate((np.ones((1, 2)), curve.intervals())).T
            (line,) = axes.step(times, value, where="post", label=curve.label)
            axes.fill_between(times, low, high, step="post", alpha=0.2, color=line.get_color(), linewidth=0)
        axes.set_ylim(0.0, 1.02)
        axes.set_xlim(left=0.0)
        axes.set_xlabel(self.survival.time)
        axes.set_ylabel(f"share without {self.survival.event}")
        if len(self.survival.curves) > 1:
            axes.legend(loc="best")


def _curve(curve: Curve) -> dict[str, Any]:
    if curve.few:
        return {"rows": curve.rows or None, "events": None}
    return {
        "rows": curve.rows,
        "events": curve.events,
        "median": dict(zip(("estimate", "low", "high"), map(_finite, curve.median()), strict=True)),
        "times": list(curve.times),
        "at_risk": list(map(round, curve.at_risk)),
        "died": list(map(round, curve.died)),
        "survival": curve.survival.tolist(),
        "standard_error": list(map(_finite, curve.errors.tolist())),
        "low": curve.intervals()[:, 0].tolist(),
        "high": curve.intervals()[:, 1].tolist(),
    }


def _median(curve: Curve) -> str:
    middle, low, high = ("-" if math.isinf(one) else f"{one:g}" for one in curve.median())
    return f"{middle} [{low}, {high}]"


def _at(curve: Curve, time: float) -> str:
    if curve.few or math.isnan(at_risk := curve.at_risk_at(time)):
        return "-"
    value, low, high = curve.value_at(time)
    return f"{at_risk:.0f}, {value:.3f} [{low:.3f}, {high:.3f}]"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
