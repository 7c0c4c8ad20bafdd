"""A site's rows of a regression: which of them are complete, and their design columns [n, p]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.data.regression.question import Array, Family, RegressionQuery
from fedcore.errors import AppError


@dataclass(frozen=True, slots=True)
class CompleteRows:
    """The rows in which nothing that a regression uses is missing.

    counts: of them, of the others, and of those whose target the family does not have, float64 [3].
    rows: their places among all rows of the site, int64 [n].
    target: float64 [n].
    """

    query: RegressionQuery
    counts: Array
    rows: NDArray[np.int64]
    target: Array
    _values: Mapping[str, Array]

    @classmethod
    def of(cls, query: RegressionQuery, columns: Mapping[str, ArrayLike]) -> Self:
        """A site's; raises AppError for a column that is missing or holds no numbers."""
        values = _values(query, columns)
        complete = _complete(query, values, columns)
        rows = np.flatnonzero(complete)
        target = values[query.target][rows] * query.unit
        wrong = int(np.count_nonzero(~_possible(query.family, target)))
        counts = np.array([len(rows), len(complete) - len(rows), wrong], np.float64)
        return cls(query, counts, rows, target, values)

    def design(self, part: slice = slice(None)) -> Array:
        """The design columns of some of these rows, not scaled, float64 [n, p]."""
        some = self.rows[part]
        return design_of(self.query, {name: column[some] for name, column in self._values.items()})


def complete_rows(query: RegressionQuery, columns: Mapping[str, ArrayLike]) -> NDArray[np.bool_]:
    """Of each row, whether nothing that the regression uses is missing in it [n]; raises AppError as answers do."""
    return _complete(query, _values(query, columns), columns)


def complete_design(query: RegressionQuery, columns: Mapping[str, ArrayLike], chosen: NDArray[np.bool_]) -> Array:
    """The design of some rows, not scaled, float64 [m, p]; raises AppError as answers do."""
    return design_of(query, {name: column[chosen] for name, column in _values(query, columns).items()})


def _values(query: RegressionQuery, columns: Mapping[str, ArrayLike]) -> dict[str, Array]:
    values = {}
    for name in query.app_columns:
        if name not in columns:
            raise AppError(
                f"there is no column {name!r}; there are {', '.join(sorted(columns)) or 'none'}", check="no-such-column"
            )
        try:
            values[name] = np.asarray(columns[name], np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise AppError(
                f"column {name!r} holds values that are no numbers; give each of its categories a number",
                check="not-numbers",
            ) from None
    if len({len(column) for column in values.values()}) > 1:
        raise AppError("the columns of the regression have different numbers of rows", check="uneven-columns")
    return values


def _complete(
    query: RegressionQuery, values: Mapping[str, Array], columns: Mapping[str, ArrayLike]
) -> NDArray[np.bool_]:
    """Of each row, whether nothing that the regression uses is missing in it [n]."""
    complete = np.isfinite(values[query.target])
    if query.survival is not None:
        complete &= query.survival.rows(columns).used
    for factor in {factor for column in query.columns for factor in column.factors}:
        complete &= np.isfinite(factor.of(values[factor.column]))
    for group in query.one_of:
        complete &= np.any([values[name] == 1 for name in group], axis=0)
    for name, levels in query.levels:
        complete &= np.isin(values[name], levels)
    return complete


def _possible(family: Family, target: Array) -> NDArray[np.bool_]:
    if family in ("logistic", "cox"):
        return np.isin(target, (0.0, 1.0))
    return np.greater_equal(target, 0.0 if family == "poisson" else -np.inf)


def design_of(query: RegressionQuery, values: Mapping[str, Array]) -> Array:
    """The design columns, float64 [n, p], not scaled."""
    rows = len(values[query.target])
    columns = [np.ones(rows)] if query.intercept else []
    for column in query.columns:
        product = np.ones(rows)
        for factor in column.factors:
            product = product * factor.of(values[factor.column])
        columns.append(product)
    return np.stack(columns, axis=1)
