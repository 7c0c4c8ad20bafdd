"""Statistics of columns as sums over clients: counts, means, variances, histograms, and quantiles out of these.

Everything is made of numbers that add up, within bounds that the question names for each column. A value outside of
its bounds counts as the nearest of them: in the outer cell of the histogram, and in the mean; how many were outside is
told. A NaN is a missing value. A name of the form `age | sex=male` is of the column `age` in the rows in which the
column `sex=male` is 1, or, if there is none of that name, in which the column `sex` is the number.

Sums are over values scaled to [-1, 1] within the bounds, and come in two parts, whole and fractional, so that nothing
of them is lost in a sum of fixed-point numbers.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.codec.privacy.site_noise import SiteNoise, check_budget
from fedcore.errors import AppError, ConfigurationError
from fedcore.system.plain_json import NO_OTHER_KEYS

Bounds: TypeAlias = Mapping[str, tuple[float, float]] | tuple[float, float]
"""The lowest and the highest value of each column by name, or of all columns that there are."""

PREFIX: Final = "statistics-"
"""Prefix of every key in a message's configuration that concerns statistics."""
STEP_KEY: Final = f"{PREFIX}regression"
"""Of a step of a regression, or of what else is asked in steps, as JSON."""
WEIGHT_KEY: Final = "class-weight"
"""Of the run config: "none", or "balanced" for class weights by the shares of the classes."""
BALANCED: Final = "balanced"
BINS: Final = 64
MOST_BINS: Final = 2048
LEAST_IN_CELL: Final = 5
"""The fewest values of a cell that `fedcore stats` shows by itself, as statistical offices do."""
CONDITION: Final = " | "
"""Between the name of a column and the condition that its rows meet."""
_FRACTION: Final = 2.0**20
"""What the fractional parts of sums are multiplied by."""
_EXACT: Final = 7
"""Numbers of a column before its cells: missing, below, above, and the two parts of each of two sums."""
_NOISED: Final = 3
"""The same with noise: missing, and two sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsQuery:
    """What is asked of every client.

    Raises ConfigurationError for what cannot be answered.

    names: of the columns; empty for all that the app has.
    low, high: bounds of each of them, or one pair for all.
    bins: cells of each histogram, all of the same width.
    epsilon, delta: differential privacy of each record of a client; 0 for none.
    releases: questions that share this epsilon.
    first, most: which columns if none are named.
    all_rows: of all rows of a client, and not of its training part alone.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    bins: int = BINS
    epsilon: float = 0.0
    delta: float = 0.0
    releases: int = 1
    first: int = 0
    most: int = 0
    all_rows: bool = False

    @classmethod
    def of(
        cls, bounds: Bounds, *, bins: int = BINS, epsilon: float = 0.0, delta: float = 0.0, all_rows: bool = False
    ) -> StatisticsQuery:
        """The whole question; `federated_statistics` parts it if it is too long for one exchange."""
        named = bounds if isinstance(bounds, Mapping) else {"": bounds}
        return cls(
            names=tuple(bounds) if isinstance(bounds, Mapping) else (),
            low=tuple(float(low) for low, _ in named.values()),
            high=tuple(float(high) for _, high in named.values()),
            bins=bins,
            epsilon=float(epsilon),
            delta=float(delta) if epsilon else 0.0,
            all_rows=all_rows,
        )

    def __post_init__(self) -> None:
        if not (1 <= self.bins <= MOST_BINS):
            raise ConfigurationError(f"a histogram has 1 to {MOST_BINS} bins, not {self.bins}")
        if len(set(self.names)) != len(self.names) or not all(1 <= len(name) <= 150 for name in self.names):
            raise ConfigurationError("a column is named twice, or its name is not 1 to 150 characters long")
        if not len(self.low) == len(self.high) == max(1, len(self.names)):
            raise ConfigurationError("there are no bounds, or not as many as columns", check="bounds-count")
        for name, low, high in zip(self.names or ("all columns",), self.low, self.high, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ConfigurationError(
                    f"the bounds of {name} are {low:g} and {high:g}; the first has to be the lower one"
                )
        if self.epsilon or self.delta:
            check_budget(self.epsilon, self.delta)
            if not self.names:
                raise ConfigurationError(
                    "differentially private statistics need bounds for each column by its name: how much noise there "
                    "has to be depends on how many there are",
                    check="bounds-needed",
                )

    @property
    def length(self) -> int:
        """How many numbers a client answers for one column."""
        return (_NOISED if self.epsilon else _EXACT) + self.bins

    def bounds_of(self, index: int) -> tuple[float, float]:
        """Of the column at this place among those that are asked for."""
        at = index if self.names else 0
        return self.low[at], self.high[at]

    def only(self, names: Sequence[str], *, releases: int) -> StatisticsQuery:
        """The question for some of its columns."""
        at = [self.names.index(name) for name in names]
        low, high = (tuple(bounds[index] for index in at) for bounds in (self.low, self.high))
        return replace(self, names=tuple(names), low=low, high=high, releases=releases)

    def noise(self) -> SiteNoise:
        """What each client adds. One record is in one cell or missing, and in two sums by at most 1, in each column."""
        return SiteNoise(
            epsilon=self.epsilon,
            delta=self.delta,
            releases=self.releases,
            dimension=len(self.names) * self.length,
            bound=math.sqrt(3 * len(self.names)),
        )

    def answer(
        self, columns: Mapping[str, ArrayLike], randomness: Callable[[int], bytes]
    ) -> dict[str, list[float] | list[int]]:
        """One client's numbers for each column; raises AppError for a column that is missing or holds no numbers."""
        names = self.names or tuple(columns)[self.first : self.first + self.most]
        values = (column_values(columns, name) for name in names)
        counts = [
            count_column(self, name, one, *self.bounds_of(at))
            for at, (name, one) in enumerate(zip(names, values, strict=True))
        ]
        if not self.epsilon:
            return {name: numbers.tolist() for name, numbers in zip(names, counts, strict=True)}
        steps = self.noise().add_to(np.concatenate(counts), randomness).reshape(len(names), self.length)
        return {name: numbers.tolist() for name, numbers in zip(names, steps, strict=True)}

    def column(self, name: str, index: int, sums: Sequence[float]) -> Column:
        """What the sums over all clients say of a column."""
        low, high = self.bounds_of(index)
        numbers = np.asarray(sums, np.float64)
        if self.epsilon:
            missing, first, second = (numbers[:_NOISED] * self.noise().step).tolist()
            cells, outside = numbers[_NOISED:] * self.noise().step, (0.0, 0.0)
        else:
            missing, below, above, *parts = numbers[:_EXACT].tolist()
            first, second = parts[0] + parts[1] / _FRACTION, parts[2] + parts[3] / _FRACTION
            cells, outside = numbers[_EXACT:], (below, above)
        return Column(
            name=name, low=low, high=high, missing=missing, below=outside[0], above=outside[1], first=first,
            second=second, cells=tuple(cells.tolist()),
        )  # fmt: skip


def column_values(columns: Mapping[str, ArrayLike], name: str) -> ArrayLike:
    """The values of a column, which `name` may restrict to rows, or which tells where another is a number: `y=1`.

    Raises AppError if there is none, or if the rows of two columns are not the same.
    """
    if name in columns:
        return columns[name]
    base, bar, condition = name.rpartition(CONDITION)
    if bar:
        values, meets = (np.asarray(column_values(columns, one)).reshape(-1) for one in (base, condition))
        if len(values) != len(meets):
            raise AppError(f"the columns of {name!r} do not have the same rows", check="other-rows")
        rows: NDArray[Any] = values[meets == 1]
        return rows
    base, _, number = name.rpartition("=")
    with contextlib.suppress(ValueError):
        if base in columns:
            equal: NDArray[np.bool_] = np.asarray(columns[base], np.float64) == float(number)
            return equal
    raise AppError(
        f"there is no column {name!r} to count; there are {', '.join(sorted(columns)) or 'none'}",
        check="no-such-column",
    )


def count_column(
    question: StatisticsQuery, name: str, values: ArrayLike, low: float, high: float
) -> NDArray[np.float64]:
    """One column of one client, [question.length]."""
    try:
        flat = np.asarray(values, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise AppError(
            f"column {name!r} holds values that are no numbers; give each of its categories a number",
            check="not-numbers",
        ) from None
    present = flat[~np.isnan(flat)]
    inside = np.clip(present, low, high)
    scaled = (inside - low) / (high - low) * 2 - 1
    index = np.minimum((inside - low) / (high - low) * question.bins, question.bins - 1).astype(np.int64)
    cells = np.bincount(index, minlength=question.bins)
    missing, sums = flat.size - present.size, (float(scaled.sum()), float(scaled @ scaled))
    if question.epsilon:
        return np.array([missing, *sums, *cells], np.float64)
    outside = (np.count_nonzero(present < low), np.count_nonzero(present > high))
    parts = [part for total in sums for part in (math.floor(total), (total - math.floor(total)) * _FRACTION)]
    return np.array([missing, *outside, *parts, *cells], np.float64)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column over all clients.

    low, high: its bounds.
    missing, below, above: how many values were missing or outside of the bounds (not told if there is noise).
    first, second: sums of the values, scaled to [-1, 1], and of their squares.
    cells: the histogram.

    With noise all of them may be fractions and below zero.
    """

    name: str
    low: float
    high: float
    missing: float
    below: float
    above: float
    first: float
    second: float
    cells: tuple[float, ...]

    @cached_property
    def count(self) -> float:
        """How many values there are, without the missing ones."""
        return math.fsum(self.cells)

    @property
    def mean(self) -> float:
        """Of the values within the bounds; NaN if there are none."""
        return self.low + (self._moments[0] + 1) * self._half

    @property
    def variance(self) -> float:
        """Of the values within the bounds, divided by their number."""
        first, second = self._moments
        return max(second - first * first, 0.0) * self._half**2

    @property
    def std(self) -> float:
        """The square root of the variance."""
        return math.sqrt(self.variance)

    @property
    def edges(self) -> tuple[float, ...]:
        """Where the cells begin and end, one more than there are cells."""
        return tuple(np.linspace(self.low, self.high, len(self.cells) + 1).tolist())

    @property
    def minimum(self) -> tuple[float, float]:
        """The lowest cell with a value in it."""
        return self._outer(range(len(self.cells)))

    @property
    def maximum(self) -> tuple[float, float]:
        """The highest cell with a value in it."""
        return self._outer(range(len(self.cells) - 1, -1, -1))

    def quantile(self, q: float) -> float:
        """The value below which a fraction q of all values lies, to the width of a cell; NaN if there are none."""
        if not 0 <= q <= 1:
            raise ConfigurationError(f"a quantile is a number from 0 to 1, not {q:g}")
        counts = np.maximum(np.asarray(self.cells), 0.0)
        if not counts.sum():
            return math.nan
        upto = np.concatenate(([0.0], np.cumsum(counts)))
        target = q * upto[-1]
        cell = int(np.clip(np.searchsorted(upto, target, side="left") - 1, 0, len(counts) - 1))
        while not counts[cell]:  # q = 0: the first one that holds anything
            cell += 1
        within = (target - upto[cell]) / counts[cell]
        return float(self.edges[cell] + min(max(within, 0.0), 1.0) * (self.edges[cell + 1] - self.edges[cell]))

    def coarse(self, least: int = LEAST_IN_CELL) -> Column:
        """The same without a number of fewer than `least` values, which may be those of one record.

        Cells that hold fewer are taken together with those after them, the last ones with those before them, and have
        the mean of these. Empty cells stay empty if the cells next to them hold enough by themselves: else they would
        tell where a single value lies. Other numbers that small, 0 excepted, are `least`; a column of so few values is
        empty.
        """
        missing, below, above = (
            float(least) if 0 < number < least else number for number in (self.missing, self.below, self.above)
        )
        column = replace(self, missing=missing, below=below, above=above)
        if self.count < least:
            return replace(column, cells=(0.0,) * len(self.cells), first=0.0, second=0.0, below=0.0, above=0.0)
        cells = [math.fsum(group) / len(group) for group in _large_groups(self.cells, least) for _ in group]
        return replace(column, cells=tuple(cells))

    @property
    def _half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def _moments(self) -> tuple[float, float]:
        """Means of the scaled values and of their squares, if noise cannot lead out of what is possible."""
        if self.count <= 0:
            return math.nan, math.nan
        return min(max(self.first / self.count, -1.0), 1.0), min(max(self.second / self.count, 0.0), 1.0)

    def _outer(self, places: range) -> tuple[float, float]:
        for index in places:
            if self.cells[index] > 0:
                return self.edges[index], self.edges[index + 1]
        return math.nan, math.nan


def _large_groups(cells: Sequence[float], least: int) -> list[list[float]]:
    """The cells in groups of at least so many values, and empty ones by themselves; their sum is at least `least`."""
    groups: list[list[float]] = []
    current: list[float] = []
    enough = True  # whether the cell before holds enough, or there is none
    for is_empty, run in groupby(cells, lambda cell: cell == 0):
        values = list(run)
        if is_empty:
            current += values
            continue
        if current and enough and values[0] >= least and not any(current):
            groups += [[value] for value in current]
            current = []
        for value in values:
            current.append(value)
            if math.fsum(current) >= least:
                groups.append(current)
                current = []
        enough = values[-1] >= least
    if any(current) or not enough:
        groups[-1] += current
    else:
        groups += [[value] for value in current]
    return groups


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Columns over a federation.

    clients: how many answered.
    asked: how many were asked.
    epsilon, delta: see `StatisticsQuery`.
    """

    columns: Mapping[str, Column]
    clients: int
    asked: int
    epsilon: float = 0.0
    delta: float = 0.0

    @property
    def count(self) -> dict[str, float]:
        """Of each column, by name, as are the following."""
        return {name: column.count for name, column in self.columns.items()}

    @property
    def missing(self) -> dict[str, float]:
        return {name: column.missing for name, column in self.columns.items()}

    @property
    def mean(self) -> dict[str, float]:
        return {name: column.mean for name, column in self.columns.items()}

    @property
    def variance(self) -> dict[str, float]:
        return {name: column.variance for name, column in self.columns.items()}

    @property
    def std(self) -> dict[str, float]:
        return {name: column.std for name, column in self.columns.items()}

    @property
    def histogram(self) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
        """Counts and edges, as `numpy.histogram` gives them."""
        return {name: (column.cells, column.edges) for name, column in self.columns.items()}

    def coarse(self) -> Statistics:
        """See `Column.coarse`; as they are if there is noise, which protects each record."""
        if self.epsilon:
            return self
        return replace(self, columns={name: column.coarse() for name, column in self.columns.items()})

    def quantile(self, q: float) -> dict[str, float]:
        """See `Column.quantile`."""
        return {name: column.quantile(q) for name, column in self.columns.items()}

    def as_config(self) -> dict[str, list[str] | list[float]]:
        """Means and standard deviations for `standardised`: a ConfigRecord's values, for each round's configuration."""
        return {
            f"{PREFIX}columns": list(self.columns),
            f"{PREFIX}mean": list(self.mean.values()),
            f"{PREFIX}std": list(self.std.values()),
        }


def class_columns(classes: int) -> tuple[str, ...]:
    """The columns whose means are the shares of the classes 0 to `classes` - 1 of the target "y"."""
    return tuple(f"y={index}" for index in range(classes))


def message_statistics(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the configurations of a message say of the columns' statistics; {} if nothing."""
    values = {key: value for config in configs.values() for key, value in config.items()}
    return {key: value for key, value in values.items() if key.startswith(PREFIX)}


def pooled(question: StatisticsQuery, parts: Sequence[Mapping[str, ArrayLike]]) -> Statistics:
    """What these clients' columns give together, without a federation; for a question without noise."""
    names = question.names or tuple(parts[0])
    answers = [replace(question, first=0, most=len(names)).answer(part, os.urandom) for part in parts]
    sums = {name: np.sum([answer[name] for answer in answers], axis=0).tolist() for name in names}
    columns = {name: question.column(name, index, sums[name]) for index, name in enumerate(names)}
    return Statistics(columns=columns, clients=len(parts), asked=len(parts))


def standardised(x: NDArray[Any], config: Mapping[str, Any], names: Sequence[str] | None = None) -> NDArray[np.float32]:
    """Features [n, d] less the federation's mean, over its standard deviation; float32. A missing value becomes 0.

    A column that is the same everywhere, or of which no client has a value, becomes 0. In the answer to a query for
    statistics, before there are any, x is returned as it is. Raises AppError if the round's configuration has no
    statistics.

    Args:
        config: what `Statistics.as_config` gave, as `LocalJob.message` has it.
        names: of the columns, "x0" and so on by default.
    """
    if f"{PREFIX}bins" in config:
        return np.asarray(x, np.float32)
    if f"{PREFIX}mean" not in config:
        raise AppError(
            "the message holds no statistics to standardise with; the ServerApp has to ask for them first "
            "(averaging_server(..., statistics=...)), or to send Statistics.as_config() with the round's configuration",
            check="no-statistics",
        )
    positions = {name: at for at, name in enumerate(config[f"{PREFIX}columns"])}
    columns = list(names) if names is not None else [f"x{at}" for at in range(x.shape[1])]
    if lacking := [name for name in columns if name not in positions]:
        raise AppError(f"there are no statistics of column {lacking[0]!r}; there are {', '.join(positions)}")
    rows = [positions[name] for name in columns]
    mean, std = (np.nan_to_num(np.asarray(config[PREFIX + key], np.float64)[rows], nan=0.0) for key in ("mean", "std"))
    scaled = (np.asarray(x, np.float64) - mean) / np.where(std > 0, std, 1.0)
    scaled[:, std == 0] = 0.0
    return np.nan_to_num(scaled, nan=0.0).astype(np.float32)
