"""How good a model is on the test rows of all sites, from sums of numbers over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.trees.settings import LOGISTIC, SOFTPROB, SQUARED_ERROR

_CELLS: Final = 1024
_FRACTION: Final = 2.0**30
_LARGEST: Final = 16.0
"""Cells between margins of this size by which AUC is computed; rows in one cell count as ties."""


def loss_sums(objective: str, margins: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float64]:
    """What a site's test rows add to the figures of all sites: the sum of losses, and for classes counts.

    The sum comes in two parts, so that a sum of fixed-point numbers loses nothing of it: the whole part, and the rest
    times 2^30. With classes how many predictions are right follows, [3]; with two of them also how many rows of target
    0 and of target 1 have their margin in each cell, [3 + 2 * 1024]. Otherwise the loss is the squared error, [2].
    """
    wide, targets = margins.astype(np.float64), y.astype(np.float64)
    if objective == SOFTPROB:
        losses = np.logaddexp.reduce(wide, axis=1) - wide[np.arange(len(y)), y.astype(np.int64)]
        return np.array([*_parts(losses.sum()), np.count_nonzero(wide.argmax(axis=1) == y)], np.float64)
    if objective != LOGISTIC:
        return np.array(_parts(np.square(wide - targets).sum()))
    loss = (np.logaddexp(0.0, wide) - targets * wide).sum()
    right = np.count_nonzero((margins > 0) == (y > 0))
    scaled = (np.clip(wide, -_LARGEST, _LARGEST) / _LARGEST + 1) / 2
    cells = np.minimum((scaled * _CELLS).astype(np.int64), _CELLS - 1)
    counts = [np.bincount(cells[y == target], minlength=_CELLS) for target in (0, 1)]
    return np.concatenate((np.array([*_parts(loss), right], np.float64), *counts))


def _parts(total: float) -> tuple[float, float]:
    rest, integral = math.modf(total)
    return integral, rest * _FRACTION


def figures_of(objective: str, sums: Sequence[float], rows: float) -> dict[str, float]:
    """Figures of all test rows from the sums: `eval_loss` and, by the objective, `eval_acc`, `auc` or `rmse`.

    Args:
        rows: over which the sums are; with none there are no figures.
    """
    if not rows:
        return {}
    loss = (sums[0] + sums[1] / _FRACTION) / rows
    if objective == SQUARED_ERROR:
        return {"eval_loss": loss, "rmse": math.sqrt(max(loss, 0.0))}
    figures = {"eval_loss": loss, "eval_acc": sums[2] / rows}
    if objective == SOFTPROB:
        return figures
    low, high = np.asarray(sums[3:], np.float64).reshape(2, -1)
    if low.sum() and high.sum():
        below = np.cumsum(low) - low
        figures["auc"] = float((high * (below + low / 2)).sum() / (low.sum() * high.sum()))
    return figures
