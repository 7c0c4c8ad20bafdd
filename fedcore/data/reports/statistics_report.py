"""Statistics as a person or a program reads them: a table, CSV, JSON; and what to ask for, out of options and files."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from fedcore.data.statistics import BINS, Bounds, Column, Statistics
from fedcore.errors import ConfigurationError, UnknownKey

QUANTILES: Final = (0.25, 0.5, 0.75)
STATISTICS: Final[TypeAdapter[Statistics]] = TypeAdapter(Statistics)
_KEYS: Final = ("bounds", "bins", "quantiles")
_BOUNDS = re.compile(r"(?:(?P<name>.+)=)?(?P<low>[^=:]+):(?P<high>[^=:]+)")


def bounds_from(texts: Iterable[str], table: Mapping[str, Any]) -> Bounds:
    """Bounds from options ("age=0:120", or "0:120" for all columns), else from `[tool.fedcore.statistics]`.

    Raises ConfigurationError that says how to give them if there are none.
    """
    check_table(table)
    words = [part for text in texts for part in text.split()]
    if words:
        return _of_texts(words)
    bounds = table.get("bounds")
    if isinstance(bounds, Mapping):
        return {str(name): _pair(pair, f"bounds of {name}") for name, pair in bounds.items()}
    if bounds is not None:
        return _pair(bounds, "bounds")
    raise ConfigurationError(
        "nobody says within which bounds the columns are to be counted; give them for each column "
        "(--bounds 'age=0:120 dose=0:5'), for all columns alike (--bounds 0:1), or in the app's pyproject.toml: "
        "[tool.fedcore.statistics.bounds] with lines such as age = [0, 120], or [tool.fedcore.statistics] with "
        'schema = "schema.toml" if the app has a schema of its table',
        check="no-bounds",
    )


def check_table(table: Mapping[str, Any]) -> None:
    """Raise UnknownKey for what `[tool.fedcore.statistics]` does not have."""
    for key in table:
        if key not in _KEYS:
            raise UnknownKey(key, _KEYS, "[tool.fedcore.statistics]")


def bins_from(option: int | None, table: Mapping[str, Any]) -> int:
    """Cells of a histogram: the option, the app's, or the default."""
    bins = option if option is not None else table.get("bins", BINS)
    if type(bins) is not int:
        raise ConfigurationError(f"bins in [tool.fedcore.statistics] must be a whole number, not {bins!r}")
    return bins


def quantiles_from(text: str, table: Mapping[str, Any]) -> tuple[float, ...]:
    """Quantiles: the option ("0.1,0.5"), the app's, or the quartiles; raises ConfigurationError for what is none."""
    values = re.split(r"[,\s]+", text.strip()) if text else table.get("quantiles", QUANTILES)
    try:
        quantiles = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"quantiles are numbers from 0 to 1, as in 0.1,0.5,0.9, not {text or values!r}"
        ) from None
    if not all(0 <= quantile <= 1 for quantile in quantiles):
        raise ConfigurationError(f"quantiles are numbers from 0 to 1, not {text or list(quantiles)}")
    return quantiles


def _of_texts(texts: Sequence[str]) -> Bounds:
    named: dict[str, tuple[float, float]] = {}
    for text in texts:
        match = _BOUNDS.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"--bounds takes name=low:high, or low:high for all columns, not {text!r}")
        pair = _pair((match["low"], match["high"]), f"--bounds {text}")
        if match["name"] is None:
            if len(texts) > 1:
                raise ConfigurationError(f"--bounds {text} is for all columns, so no others can be given with it")
            return pair
        if match["name"] in named:
            raise ConfigurationError(f"--bounds names {match['name']} twice")
        named[match["name"]] = pair
    return named


def _pair(values: object, what: str) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in values)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ConfigurationError(f"{what} must be two numbers, the lowest and the highest value") from None
    return low, high


# --- what is shown --------------------------------------------------------------------------------------------------


def headings(quantiles: Sequence[float]) -> list[str]:
    """Of the table's columns."""
    return ["column", "count", "missing", "outside", "mean", "std", "min", *(f"q{q:g}" for q in quantiles), "max"]


def rows(statistics: Statistics, quantiles: Sequence[float]) -> list[list[str | float]]:
    """A row for each column, under `headings`; NaN if there is nothing to tell."""
    return [[name, *_row(column, quantiles, statistics.epsilon > 0)] for name, column in statistics.columns.items()]


def _row(column: Column, quantiles: Sequence[float], noised: bool) -> list[float]:
    outside = math.nan if noised else column.below + column.above
    values = [column.quantile(q) for q in quantiles]
    ends = (math.nan, math.nan) if noised else (column.minimum[0], column.maximum[1])
    return [column.count, column.missing, outside, column.mean, column.std, ends[0], *values, ends[1]]


def as_text(value: str | float) -> str:
    """A cell of the table."""
    if isinstance(value, str):
        return value
    return "-" if math.isnan(value) else f"{value:.6g}"


def as_csv(statistics: Statistics, quantiles: Sequence[float]) -> str:
    """The table, with an empty field if there is nothing to tell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings(quantiles))
    for row in rows(statistics, quantiles):
        writer.writerow(["" if isinstance(value, float) and math.isnan(value) else value for value in row])
    return out.getvalue()


def as_json(statistics: Statistics, quantiles: Sequence[float]) -> dict[str, Any]:
    """The table and the histograms, null if there is nothing to tell."""
    keys = headings(quantiles)[1:]
    columns = {}
    for name, *values in rows(statistics, quantiles):
        column = statistics.columns[str(name)]
        columns[str(name)] = {
            **{key: None if math.isnan(value) else value for key, value in zip(keys, values, strict=True)},  # type: ignore[arg-type]
            "histogram": {"counts": list(column.cells), "edges": list(column.edges)},
        }
    return {
        "clients": statistics.clients,
        "asked": statistics.asked,
        "dp_epsilon": statistics.epsilon or None,
        "dp_delta": statistics.delta if statistics.epsilon else None,
        "columns": columns,
    }
