"""Numbers as people read them: percentages, bytes, seconds, each with its spread."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedcore.compare.report.summary import Spread, Summary

NONE = "–"
Format = Callable[[float], str]


def percent(value: float) -> str:
    """A share of one as a percentage with two digits, without the sign."""
    return f"{100 * value:.2f}"


def decimal(value: float) -> str:
    """Four digits after the point; fewer for large numbers."""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def count(value: float) -> str:
    """A number of things, rounded."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in units of 1000."""
    if value < 1000:
        return f"{value:.0f} B"
    for unit in ("kB", "MB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} GB"


def duration(value: float) -> str:
    """Seconds in the unit that suits them."""
    if value < 0.001:
        return f"{1e6 * value:.1f} µs"
    if value < 0.1:
        return f"{1000 * value:.1f} ms"
    if value < 120:
        return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def mean(spread: Spread | None, form: Format) -> str:
    """The mean alone."""
    if spread is None:
        return NONE
    return form(spread.mean) if math.isfinite(spread.mean) else "not finite"


def mean_sd(spread: Spread | None, form: Format) -> str:
    """The mean and, of several values, the standard deviation."""
    text = mean(spread, form)
    if spread is None or spread.sd is None or not math.isfinite(spread.sd):
        return text
    return f"{text} ± {form(spread.sd)}"


def seeds(summary: Summary) -> str:
    """How many runs finished, and how many did not."""
    return str(summary.finished) if not summary.failed else f"{summary.finished}, {summary.failed} failed"
