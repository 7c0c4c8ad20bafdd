"""How good a model is on the test rows of all sites, from sums of numbers over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.trees.settings import LOGISTIC

_CELLS: Final = 1024
_LARGEST: Final = 16.0
"""Cells between margins of this size by which AUC is computed; rows in one cell count as ties."""


def loss_sums(objective: str, margins: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float64]:
    """What a site's test rows add to the figures of all sites: the sum of losses, and for a binary target counts.

    These are how many predictions are right, and how many rows of target 0 and of target 1 have their margin in each
    cell; [2 + 2 * 1024]. Otherwise the loss is the squared error, [1].
    """
    wide, targets = margins.astype(np.float64), y.astype(np.float64)
    if objective != LOGISTIC:
        return np.array([np.square(wide - targets).sum()])
    loss = (np.logaddexp(0.0, wide) - targets * wide).sum()
    right = np.count_nonzero((margins > 0) == (y > 0))
    scaled = (np.clip(wide, -_LARGEST, _LARGEST) / _LARGEST + 1) / 2
    cells = np.minimum((scaled * _CELLS).astype(np.int64), _CELLS - 1)
    counts = [np.bincount(cells[y == target], minlength=_CELLS) for target in (0, 1)]
    return np.concatenate(([loss, right], *counts))


def figures_of(objective: str, sums: Sequence[float], rows: float) -> dict[str, float]:
    """Figures of all test rows from the sums: `eval_loss` and, by the objective, `eval_acc` and `auc`, or `rmse`.

    Args:
        rows: over which the sums are; with none there are no figures.
    """
    if not rows:
        return {}
    loss = sums[0] / rows
    if objective != LOGISTIC:
        return {"eval_loss": loss, "rmse": math.sqrt(max(loss, 0.0))}
    low, high = np.asarray(sums[2:], np.float64).reshape(2, -1)
    figures = {"eval_loss": loss, "eval_acc": sums[1] / rows}
    if low.sum() and high.sum():
        below = np.cumsum(low) - low
        figures["auc"] = float((high * (below + low / 2)).sum() / (low.sum() * high.sum()))
    return figures
