"""What two runs of boosted trees tell of a row that is in one of them alone; part of tree_histograms.py.

Between the runs one site has a row more or less, as a hospital has next week. A run begins with a histogram of each
column over all sites and the mean of the target, before its first tree, whatever the owners' policies say of trees and
whatever the seed draws. The difference of two such answers is the row.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.cli.new.columns import coarse_bounds
from fedcore.data.statistics import Statistics, StatisticsQuery, pooled
from fedcore.trees.limits import FINE_BINS

DEPTH: Final = 2
TREES: Final = 10
FEATURES: Final = 4


def told_by_difference(x: NDArray[Any], y: NDArray[Any], count: int) -> float:
    """Of rows drawn at random the share whose target, and each value to a thousandth of its bounds, is the difference.

    Args:
        x: features [n, d], with nan for a missing value.
        y: targets 0 and 1, [n].
        count: of rows.
    """
    columns = {f"x{at}": column.astype(np.float64) for at, column in enumerate(x.T)} | {"y": y.astype(np.float64)}
    bounds = {name: coarse_bounds(column[~np.isnan(column)]) for name, column in columns.items()} | {"y": (0.0, 1.0)}
    question = StatisticsQuery.of(bounds, bins=FINE_BINS)
    after = pooled(question, [columns])
    drawn = np.random.default_rng(11).choice(len(y), min(count, len(y)), replace=False)
    return float(np.mean([_is_told(question, columns, after, int(row)) for row in drawn]))


def _is_told(question: StatisticsQuery, columns: dict[str, NDArray[Any]], after: Statistics, row: int) -> bool:
    before = pooled(question, [{name: np.delete(column, row) for name, column in columns.items()}])
    for name, column in columns.items():
        one, other = after.columns[name], before.columns[name]
        cells = np.asarray(one.cells) - np.asarray(other.cells)
        value, missing = column[row], one.missing - other.missing
        if math.isnan(value):
            if (missing, np.abs(cells).sum()) != (1, 0):
                return False
            continue
        at = int(np.flatnonzero(cells)[0]) if np.count_nonzero(cells) == 1 else -1
        width = (one.high - one.low) / len(cells)
        low = one.low + at * width
        if at < 0 or cells[at] != 1 or not low - width / 100 <= value <= low + width * 1.01:
            return False
    return True
