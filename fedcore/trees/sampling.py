"""Which rows and features a tree grows from: draws that its number and the seed of the run decide.

A site that was restarted draws the same rows again, so that all sums of a tree are over the same ones. XGBoost draws
in another order with other generators: equal in distribution, not in the rows and features themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcore.trees.settings import BoostingSettings

_ROWS, _FEATURES = 1, 2
"""So that no draw of rows is one of features."""


def drawn_rows(settings: BoostingSettings, tree: int, site: int, rows: int) -> NDArray[np.int64]:
    """The rows of a site that a tree grows from, each drawn by itself with probability `subsample`; rising.

    Args:
        tree: its number from 0 on.
        site: the number of the site, so that two sites do not draw alike.
    """
    if settings.subsample == 1:
        return np.arange(rows)
    draw = np.random.default_rng([_ROWS, settings.seed, tree, site % (1 << 64)])
    return np.flatnonzero(draw.random(rows) < settings.subsample)


def drawn_features(settings: BoostingSettings, tree: int, features: int) -> NDArray[np.int64]:
    """The features that a tree may split by: as many as XGBoost draws, and at least one; rising."""
    count = max(1, int(np.float32(settings.colsample_bytree) * np.float32(features)))
    draw = np.random.default_rng([_FEATURES, settings.seed, tree])
    return np.sort(draw.permutation(features)[:count])
