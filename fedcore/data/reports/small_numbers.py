"""Which numbers of a table are not shown: those of few rows, and others from which these would follow.

Primary and secondary suppression, as statistical offices do it (Hundepool et al., Statistical Disclosure Control, 2012,
chapter 4). A zero is shown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcore.data.statistics import LEAST_IN_CELL

Counts = NDArray[np.float64]
Mask = NDArray[np.bool_]

_NEAR = 1e-6


def small(counts: Counts) -> Mask:
    """Which are of fewer than LEAST_IN_CELL rows, zeros excepted."""
    mask: Mask = (counts > 0) & (counts < LEAST_IN_CELL)
    return mask


def hidden_numbers(counts: Counts, hidden: Mask | None = None) -> Mask:
    """Small numbers, and in each line and column with a single hidden number the smallest of the others.

    Args:
        counts: [values, groups]; one group may be the sum of the others.
        hidden: numbers that are hidden in any case; None for the small ones.
    """
    hidden = small(counts) if hidden is None else hidden.copy()
    while True:
        before = hidden.copy()
        for lines, hides in ((counts.T, hidden.T), (counts, hidden)):
            for line, hide in zip(lines, hides, strict=True):
                others = np.flatnonzero(~hide & (line > 0))
                if hide.sum() == 1 and others.size:
                    hide[others[np.argmin(line[others])]] = True
        if (hidden == before).all():
            return hidden


def hidden_in_groups(counts: Counts, hidden: Mask) -> Mask:
    """Numbers of a column in groups whose sizes are shown, that are not shown [values, groups].

    Readers who know the sizes find that each small number may be any from 1 to LEAST_IN_CELL - 1, as far as there are
    others to hide.

    Args:
        counts: rows of each value; if there are several groups, the first one is the sum of the others.
        hidden: numbers that are hidden in any case.
    """
    hidden = hidden_numbers(counts, hidden)
    sizes = np.zeros((1, counts.shape[1]), np.bool_)
    while True:
        full, mask = (
            np.column_stack([values[:, 1:] if values.shape[1] > 1 else values, values[:, :1]])
            for values in (np.vstack([counts, counts.sum(axis=0)]), np.vstack([hidden, sizes]))
        )
        cell = _determined(full, mask)
        candidates = ~hidden & (counts > 0)
        if cell is None or not candidates.any():
            return hidden
        lines = np.zeros(counts.shape, np.bool_)
        lines[cell[0]] = lines[:, (cell[1] + 1) % counts.shape[1]] = True
        if (candidates & lines).any():
            candidates &= lines
        hidden[np.unravel_index(np.argmin(np.where(candidates, counts, np.inf)), counts.shape)] = True
        hidden = hidden_numbers(counts, hidden)


def with_totals(counts: Counts) -> Counts:
    """A table [rows, columns] with its totals, [rows + 1, columns + 1]."""
    rows = np.vstack([counts, counts.sum(axis=0)])
    return np.column_stack([rows, rows.sum(axis=1)])


def hidden_in_table(counts: Counts) -> Mask:
    """Of a table's numbers and its totals, [rows + 1, columns + 1], those that are not shown.

    Readers who know that totals are sums find that each small number may be any from 1 to LEAST_IN_CELL - 1.

    Args:
        counts: [rows, columns].
    """
    full = with_totals(counts)
    if full[-1, -1] < LEAST_IN_CELL:
        return np.ones(full.shape, bool)
    hidden = hidden_numbers(full)
    while (cell := _determined(full, hidden)) is not None:
        candidates = ~hidden & (full > 0)
        lines = np.zeros(full.shape, bool)
        lines[cell[0]] = lines[:, cell[1]] = True
        if (candidates & lines).any():
            candidates &= lines
        sizes = np.where(candidates, full, np.inf)
        hidden[np.unravel_index(np.argmin(sizes), full.shape)] = True
        hidden = hidden_numbers(full, hidden)
    return hidden


def _determined(full: Counts, hidden: Mask) -> tuple[int, int] | None:
    """A small number that cannot be each of 1 to LEAST_IN_CELL - 1; None if there is none, or nothing else to hide."""
    from scipy.optimize import linprog

    places = np.argwhere(hidden)
    if not (~hidden & (full > 0)).any():
        return None
    matrix, sums = _equations(full, hidden, places)
    for at, (row, column) in enumerate(places):
        if not 0 < full[row, column] < LEAST_IN_CELL or _exchanges(full, hidden, row, column):
            continue
        ends = []
        for sign in (1.0, -1.0):
            goal = np.zeros(len(places))
            goal[at] = sign
            solution = linprog(goal, A_eq=matrix, b_eq=sums, bounds=(1, None))
            ends.append(sign * solution.fun if solution.status == 0 else np.inf)  # 3: without a bound
        if ends[0] > 1 + _NEAR or ends[1] < LEAST_IN_CELL - 1 - _NEAR:
            return int(row), int(column)
    return None


def _exchanges(full: Counts, hidden: Mask, row: int, column: int) -> bool:
    """Whether a small number may be each of 1 to LEAST_IN_CELL - 1, by rows exchanged with three other hidden numbers.

    Most may, and a linear program for each of a large table takes minutes.
    """
    if row == len(full) - 1 or column == full.shape[1] - 1:
        return False
    inner, open_ = full[:-1, :-1], hidden[:-1, :-1]
    along, down = open_[row].copy(), open_[:, column].copy()
    along[column] = down[row] = False
    more, less = LEAST_IN_CELL - 1 - inner[row, column], inner[row, column] - 1
    gives = np.outer(down & (inner[:, column] - more >= 1), along & (inner[row] - more >= 1)) & open_
    takes = np.outer(down, along) & open_ & (inner - less >= 1)
    return bool(gives.any() and takes.any())


def _equations(full: Counts, hidden: Mask, places: NDArray[np.intp]) -> tuple[Counts, Counts]:
    """What the hidden numbers add up to in each row and column that has some [equations, hidden], [equations]."""
    known = np.where(hidden, 0.0, full)
    lines, sums = [], []
    for axis in (0, 1):
        for line in range(full.shape[axis]):
            sign = np.ones(full.shape[1 - axis])
            sign[-1] = -1.0
            signs = sign[places[:, 1 - axis]]
            coefficients = np.where(places[:, axis] == line, signs, 0.0)
            if coefficients.any():
                lines.append(coefficients)
                sums.append(-float(np.take(known, line, axis=axis) @ sign))
    return np.array(lines), np.array(sums)
