"""Pearson's correlations of columns as sums over clients: of each pair, over the rows that have a value of both.

Values are scaled to about [-1, 1] by bounds that all clients share; none is cut off. Each sum comes in two parts, whole
and fractional, so that a sum of fixed-point numbers loses nothing of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.data.correlation.matrix import Correlations
from fedcore.data.statistics import LEAST_IN_CELL
from fedcore.errors import AppError, ConfigurationError
from fedcore.system.plain_json import NO_OTHER_KEYS

Array: TypeAlias = NDArray[np.float64]

MOST_COLUMNS: Final = 25
"""With more the numbers of all pairs have no room in one query."""
_LARGEST: Final = 2.0**39
"""What a client's sum is cut off at."""
_FRACTION: Final = 2.0**38
_COUNTS: Final = 3
"""Of each pair: rows, and those in which the first and the second number are not 0."""
_SUMS: Final = 5
"""Of each pair: both numbers, both squares, the product."""
_ROWS_AT_ONCE: Final = 1 << 16
_CONSTANT: Final = 1e-12
"""The least variance, in squares of half of the width of the bounds, that is told from 0."""
_NEAR: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationQuery:
    """Correlations of columns; raises ConfigurationError for columns that have none.

    names: of the columns, in the output.
    columns: of the app.
    low, high: between what each lies, roughly; they scale it, and no value is cut off.
    """

    __pydantic_config__ = NO_OTHER_KEYS

    names: tuple[str, ...]
    columns: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.names) <= MOST_COLUMNS:
            raise ConfigurationError(
                f"there are correlations of 2 to {MOST_COLUMNS} columns, not of {len(self.names)}; name those that you "
                "want",
                check="columns-count",
            )
        if len({len(self.names), len(self.columns), len(self.low), len(self.high)}) > 1:
            raise ConfigurationError("there are not as many bounds as columns", check="bounds-count")
        if len(set(self.columns)) < len(self.columns):
            raise ConfigurationError("a column is named twice", check="same-column")
        for name, low, high in zip(self.names, self.low, self.high, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ConfigurationError(
                    f"the bounds of {name} are {low:g} and {high:g}; the first has to be the lower one"
                )

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Of places of columns, the earlier one first."""
        return list(itertools.combinations(range(len(self.names)), 2))

    @property
    def length(self) -> int:
        """How many numbers a client answers."""
        return len(self.pairs) * (_COUNTS + 2 * _SUMS)

    def answer(self, columns: Mapping[str, ArrayLike]) -> list[float]:
        """One client's numbers [length]; raises AppError for a column that is missing or holds no numbers."""
        values = np.stack(_values(self.columns, columns))
        low, high = np.array(self.low)[:, None], np.array(self.high)[:, None]
        first, second = np.array(self.pairs).T
        counts, sums = np.zeros((_COUNTS, len(self.pairs))), np.zeros((_SUMS, len(self.pairs)))
        for start in range(0, values.shape[1], _ROWS_AT_ONCE):
            some = values[:, start : start + _ROWS_AT_ONCE]
            has_value = np.isfinite(some)
            present = has_value.astype(np.float64)
            nonzero = np.where(has_value, some != 0, 0.0) @ present.T
            scaled = np.where(has_value, (some - low) / (high - low) * 2 - 1, 0.0)
            total, square = scaled @ present.T, scaled**2 @ present.T
            counts += [(present @ present.T)[first, second], nonzero[first, second], nonzero[second, first]]
            sums += [
                total[first, second], total[second, first], square[first, second], square[second, first],
                (scaled @ scaled.T)[first, second],
            ]  # fmt: skip
        cut = np.clip(np.nan_to_num(sums, nan=_LARGEST), -_LARGEST, _LARGEST)
        parts = np.floor(cut)
        numbers: list[float] = np.concatenate([counts, parts, (cut - parts) * _FRACTION]).reshape(-1).tolist()
        return numbers

    def correlations(self, numbers: Sequence[float], clients: int, nodes: int) -> Correlations:
        """What the sums over all clients say, without what rests on fewer than LEAST_IN_CELL rows.

        Raises ConfigurationError for bounds that are far too narrow.
        """
        values = np.asarray(numbers, np.float64)
        if values.shape != (self.length,):
            raise AppError(f"the answer has {values.size} numbers, and {self.length} were expected")
        counts, parts, fractions = np.split(values.reshape(-1, len(self.pairs)), [_COUNTS, _COUNTS + _SUMS])
        if np.abs(parts).max() >= _LARGEST:
            raise ConfigurationError(
                "the values of a column lie so far outside its bounds that their sums do not fit into a query; give "
                "its bounds as they are (--bounds 'age=0:120')",
                check="bounds-too-narrow",
            )
        counts, sums = counts.round(), parts + fractions / _FRACTION
        hidden = self._hidden(counts, sums)
        r = np.where(hidden, np.nan, _pearson(counts[0], sums))
        return Correlations(
            names=self.names,
            rows=tuple(None if hide else round(n) for n, hide in zip(counts[0], hidden, strict=True)),
            r=tuple(None if math.isnan(one) else one for one in r.tolist()),
            clients=clients,
            nodes=nodes,
        )

    def _hidden(self, counts: Array, sums: Array) -> NDArray[np.bool_]:
        """Which pairs would tell of fewer rows: also if a number is 0 in nearly all rows, or 0 and 1 [pairs].

        If both numbers are 0 and 1, the correlation is that of a table of counts.
        """
        rows, *nonzero = counts
        hidden = _few(rows)
        low, high = np.array(self.low), np.array(self.high)
        indicators, totals = [], []
        for at, columns in enumerate(np.array(self.pairs).T):
            half, middle = (high - low)[columns] / 2, (high + low)[columns] / 2
            total = half * sums[at] + middle * rows
            square = half**2 * sums[2 + at] + 2 * middle * total - middle**2 * rows
            indicator = (np.abs(total - nonzero[at]) < _NEAR) & (np.abs(square - nonzero[at]) < _NEAR)
            hidden |= _few(nonzero[at]) | (indicator & _few(rows - nonzero[at]))
            indicators.append(indicator)
            totals.append((total, half, middle))
        (first, half, middle), (second, other_half, other_middle) = totals
        both = (
            half * other_half * sums[4] + middle * second + other_middle * first - middle * other_middle * rows
        ).round()
        cells = [both, nonzero[0] - both, nonzero[1] - both, rows - nonzero[0] - nonzero[1] + both]
        return np.asarray(hidden | (indicators[0] & indicators[1] & np.any([_few(cell) for cell in cells], axis=0)))


def _few(counts: Array) -> NDArray[np.bool_]:
    few: NDArray[np.bool_] = (counts > 0) & (counts < LEAST_IN_CELL)
    return few


def _pearson(rows: Array, sums: Array) -> Array:
    """Nan if a column is constant in these rows, or there are none [pairs]."""
    n = np.where(rows > 0, rows, np.nan)
    x, y, xx, yy, xy = sums / n
    variances = [xx - x * x, yy - y * y]
    usable = np.minimum(*variances) > _CONSTANT
    with np.errstate(invalid="ignore"):
        r: Array = (xy - x * y) / np.sqrt(np.where(usable, variances[0] * variances[1], np.nan))
    return np.asarray(np.clip(r, -1.0, 1.0))


def _values(names: Sequence[str], columns: Mapping[str, ArrayLike]) -> list[Array]:
    values = []
    for name in names:
        if name not in columns:
            raise AppError(
                f"there is no column {name!r}; there are {', '.join(sorted(columns)) or 'none'}", check="no-such-column"
            )
        try:
            values.append(np.asarray(columns[name], np.float64).reshape(-1))
        except (TypeError, ValueError):
            raise AppError(
                f"column {name!r} holds values that are no numbers; give each of its categories a number",
                check="not-numbers",
            ) from None
    if len({len(column) for column in values}) > 1:
        raise AppError("the columns of the correlations have different numbers of rows", check="uneven-columns")
    return values
