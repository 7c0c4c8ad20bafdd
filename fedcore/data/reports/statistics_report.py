"""Statistics as a person or a program reads them: a table, CSV, JSON; and what to ask for, out of options and files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fedcore.data.reports.report import csv_text
from fedcore.data.statistics import BINS, LEAST_IN_CELL, Bounds, Column, Statistics
from fedcore.errors import ConfigurationError, UnknownKey

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTILES: Final = (0.25, 0.5, 0.75)
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


@dataclass(frozen=True, slots=True)
class StatisticsReport:
    """A row for each column, with some quantiles."""

    statistics: Statistics
    quantiles: tuple[float, ...]

    def headings(self) -> list[str]:
        """Of the table's columns."""
        names = (f"q{q:g}" for q in self.quantiles)
        return ["column", "count", "missing", "outside", "mean", "std", "min", *names, "max"]

    def rows(self) -> list[list[str | float]]:
        """A row for each column, under `headings`; NaN if there is nothing to tell."""
        return [[name, *self._row(column)] for name, column in self.statistics.columns.items()]

    def _row(self, column: Column) -> list[float]:
        noised = self.statistics.epsilon > 0
        outside = math.nan if noised else column.below + column.above
        values = [column.quantile(q) for q in self.quantiles]
        ends = (math.nan, math.nan) if noised else (column.minimum[0], column.maximum[1])
        return [column.count, column.missing, outside, column.mean, column.std, ends[0], *values, ends[1]]

    def lines(self) -> list[list[str]]:
        """As `ColumnsReport.lines`."""
        return [self.headings(), *([_as_text(value) for value in row] for row in self.rows())]

    def csv(self) -> str:
        """As `ColumnsReport.csv`."""
        return csv_text([self.headings(), *self.rows()])

    def document(self) -> dict[str, Any]:
        """The table and the histograms, None if there is nothing to tell."""
        statistics, keys = self.statistics, self.headings()[1:]
        columns = {}
        for name, *values in self.rows():
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

    def notes(self) -> list[str]:
        """As `ColumnsReport.notes`."""
        statistics = self.statistics
        notes = [of_clients(statistics.clients, statistics.asked)]
        if statistics.epsilon:
            return [
                *notes,
                f"with noise for every record of a client: epsilon {statistics.epsilon:g} at delta "
                f"{statistics.delta:g}, for this answer alone; each further one adds its own",
            ]
        if any(column.below + column.above for column in statistics.columns.values()):
            notes.append("values outside the bounds count as the nearest bound, also in mean and std")
        return [
            *notes,
            f"cells of the histograms that hold fewer than {LEAST_IN_CELL} values are taken together with those next "
            f"to them; other numbers that small are given as {LEAST_IN_CELL}, and columns of so few values as empty",
        ]

    def draw(self, figure: Figure) -> None:
        """A histogram of each column, four in a row."""
        columns = self.statistics.columns
        across = min(len(columns), _ACROSS)
        down = -(-len(columns) // across)
        figure.set_size_inches(2.4 * across, 2.0 * down)
        for axes, (name, column) in zip(
            figure.subplots(down, across, squeeze=False).flat, columns.items(), strict=False
        ):
            axes.stairs(column.cells, column.edges, fill=True)
            axes.set_title(name, fontsize="small")
            axes.tick_params(labelsize="x-small")
        for axes in figure.axes[len(columns) :]:
            axes.remove()


_ACROSS: Final = 4


def of_clients(clients: int, cohort: int) -> str:
    """A note that says of how many clients an answer is."""
    if clients < cohort:
        return f"of {clients} clients; {cohort} were asked, and the others contributed nothing"
    return f"of {clients} clients"


def _as_text(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return "-" if math.isnan(value) else f"{value:.6g}"
