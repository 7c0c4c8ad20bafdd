"""Correlations with their tests and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Correlations:
    """Pearson's correlations over a federation, a number for each pair of columns in the order of `combinations`.

    names: of the columns.
    rows: in which both columns have a value; None if the pair is not shown.
    r: None too if one of the columns is constant in these rows.
    clients, nodes: how many contributed, and how many there were.
    """

    names: tuple[str, ...]
    rows: tuple[int | None, ...]
    r: tuple[float | None, ...]
    clients: int
    nodes: int

    @property
    def p_values(self) -> tuple[float, ...]:
        """Two-sided, that a correlation is 0, by the t-test; NaN for fewer than three rows."""
        from scipy.stats import t

        n, r = np.array(self.rows, np.float64), np.array(self.r, np.float64)
        degrees = np.where(n > 2, n - 2, np.nan)
        with np.errstate(divide="ignore"):
            values = 2 * t.sf(np.abs(r) * np.sqrt(degrees / (1 - r**2)), degrees)
        return tuple(values.tolist())

    def intervals(self, confidence: float = 0.95) -> tuple[tuple[float, float], ...]:
        """By Fisher's transformation, of each pair; NaN for fewer than four rows."""
        from scipy.stats import norm

        n = np.array(self.rows, np.float64)
        width = norm.ppf((1 + confidence) / 2) / np.sqrt(np.where(n > 3, n - 3, np.nan))
        with np.errstate(divide="ignore", invalid="ignore"):
            middle = np.arctanh(np.array(self.r, np.float64))
        low, high = np.tanh(middle - width).tolist(), np.tanh(middle + width).tolist()
        return tuple(zip(low, high, strict=True))

    def matrix(self, values: Sequence[float | None], diagonal: float = math.nan) -> NDArray[np.float64]:
        """Numbers of pairs as a symmetric matrix [columns, columns]."""
        matrix = np.full((len(self.names), len(self.names)), diagonal)
        first, second = np.triu_indices(len(self.names), 1)
        matrix[first, second] = matrix[second, first] = np.array(values, np.float64)
        return matrix
