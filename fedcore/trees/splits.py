"""The split of a node that XGBoost 3.2's `hist` finds from the same sums, by numbers and by categories.

Follows src/tree/hist/evaluate_splits.h, split_evaluator.h and param.h there, with its types: sums in double, gains
and weights in float32. Sums here are integers, so a difference (the sibling's histogram, the missing values) is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.trees.cuts import Cuts
from fedcore.trees.histograms import Scale
from fedcore.trees.settings import BoostingSettings

_LEAST_GAIN: Final = np.float32(1e-6)
"""XGBoost's kRtEps."""


class TreeSplit(NamedTuple):
    """The best split of a node: integer sums (gradient, hessian) of its left side, [2].

    right: the categories that go to the right, rising; none for a split at the threshold.
    """

    feature: int
    threshold: np.float32
    default_left: bool
    gain: np.float32
    left: NDArray[np.int64]
    right: NDArray[np.int64] = np.zeros(0, np.int64)


def weights_of(g: NDArray[Any], h: NDArray[Any], settings: BoostingSettings) -> NDArray[np.float32]:
    """Weights of leaves before the learning rate, float32, from sums in float64."""
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = (-g / (h + float(np.float32(settings.reg_lambda)))).astype(np.float32)
    return np.where((h < float(np.float32(settings.min_child_weight))) | (h <= 0), np.float32(0), weights)


def gain_of(g: NDArray[Any], h: NDArray[Any], settings: BoostingSettings) -> NDArray[np.float32]:
    """What leaves of these sums (float64) gain, float32."""
    penalised = (h + float(np.float32(settings.reg_lambda))).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = np.square(g).astype(np.float32) / penalised
    return np.where(h > 0, gains, np.float32(0))


def best_split(
    histogram: NDArray[np.int64], node: NDArray[np.int64], cuts: Cuts, scale: Scale, settings: BoostingSettings
) -> TreeSplit | None:
    """The split that XGBoost takes, None if it takes none.

    Of equal gains the lower feature wins, then missing values to the right, then the bin that its scan meets first:
    from below with missing values to the right, from above with those to the left.

    Args:
        histogram: of the node, int64 [2, bins].
        node: its sums (gradient, hessian), int64 [2].
    """
    best: TreeSplit | None = None
    for split in _candidates(histogram, node, cuts, scale, settings):
        if best is None or (-split.gain, split.feature) < (-best.gain, best.feature):
            best = split
    if best is None or not best.gain > _LEAST_GAIN or best.gain < np.float32(settings.gamma):
        return None
    return None if best.left[1] == 0 or best.left[1] == node[1] else best


def _candidates(
    histogram: NDArray[np.int64], node: NDArray[np.int64], cuts: Cuts, scale: Scale, settings: BoostingSettings
) -> Iterator[TreeSplit]:
    """The best split by numbers, and that of each column of categories."""
    if len(cuts.categories) < cuts.features:
        yield _by_numbers(histogram, node, cuts, scale, settings)
    for feature in cuts.categories:
        cells = histogram[:, cuts.starts[feature] : cuts.starts[feature + 1]]
        by_category = _one_hot if cells.shape[1] < settings.max_cat_to_onehot else _in_two_sets
        yield by_category(feature, cells, node, scale, settings)


def _by_numbers(
    histogram: NDArray[np.int64], node: NDArray[np.int64], cuts: Cuts, scale: Scale, settings: BoostingSettings
) -> TreeSplit:
    left = np.cumsum(histogram, axis=1)
    before = np.concatenate((np.zeros((2, 1), np.int64), left), axis=1)
    owner = np.repeat(np.arange(cuts.features), np.diff(cuts.starts))
    first = cuts.starts[:-1][owner]
    left -= before[:, first]
    ends = left[:, cuts.starts[1:] - 1]
    missing = (node[:, None] - ends)[:, owner]
    forward = _gains(left, node, settings, scale)
    # Below a bin with all that is missing; below the first one it would be the last of the scan from below again.
    lower = np.concatenate((np.zeros((2, 1), np.int64), left[:, :-1]), axis=1) + missing
    backward = _gains(lower, node, settings, scale)
    backward[(missing == 0).all(axis=0)] = -np.inf
    backward[cuts.starts[:-1]] = -np.inf
    by_category = np.isin(owner, cuts.categories)
    forward[by_category], backward[by_category] = -np.inf, -np.inf
    best = max(forward.max(), backward.max())
    feature = int(owner[np.flatnonzero((forward == best) | (backward == best))[0]])
    span = slice(int(cuts.starts[feature]), int(cuts.starts[feature + 1]))
    if (forward[span] == best).any():
        at, sums, default_left = span.start + int(np.argmax(forward[span] == best)), left, False
        threshold = cuts.values[at]
    else:
        at, sums, default_left = span.stop - 1 - int(np.argmax((backward[span] == best)[::-1])), lower, True
        threshold = cuts.values[at - 1]
    return TreeSplit(feature, threshold, default_left, np.float32(best), sums[:, at].copy())


def _one_hot(
    feature: int, cells: NDArray[np.int64], node: NDArray[np.int64], scale: Scale, settings: BoostingSettings
) -> TreeSplit:
    """One category to the right; of equal gains the first category, then missing values to the left."""
    missing = node - cells.sum(axis=1)
    right = np.stack([cells, cells + missing[:, None]], axis=2).reshape(2, -1)
    left = node[:, None] - right
    gains = _gains(left, node, settings, scale)
    at = int(np.argmax(gains))
    return TreeSplit(feature, np.float32(0), at % 2 == 0, gains[at], left[:, at], np.array([at // 2]))


def _in_two_sets(
    feature: int, cells: NDArray[np.int64], node: NDArray[np.int64], scale: Scale, settings: BoostingSettings
) -> TreeSplit:
    """The first categories in the order of their weights to the right (XGBoost's partition-based splits).

    Of equal gains missing values go to the left, then the fewest categories to the right, or to the left.
    """
    order = np.argsort(weights_of(*scale.floats(cells), settings), kind="stable")
    most = min(settings.max_cat_threshold, len(order)) - 1
    if not most:  # one category, or one that is considered: nothing to part
        return TreeSplit(feature, np.float32(0), True, np.float32(-np.inf), node.copy())
    forward = node[:, None] - np.cumsum(cells[:, order], axis=1)[:, :most]
    backward = np.cumsum(cells[:, order[::-1]], axis=1)[:, :most]
    gains = np.concatenate([_gains(forward, node, settings, scale), _gains(backward, node, settings, scale)])
    at = int(np.argmax(gains))
    count = at + 1 if at < most else len(order) - (at - most) - 1
    left = np.concatenate([forward, backward], axis=1)[:, at]
    return TreeSplit(feature, np.float32(0), at < most, gains[at], left, np.sort(order[:count]))


def _gains(
    left: NDArray[np.int64], node: NDArray[np.int64], settings: BoostingSettings, scale: Scale
) -> NDArray[np.float32]:
    """What each split gains over the node as a leaf, -inf where a side is too light; float32 [bins]."""
    left_g, left_h = scale.floats(left)
    right_g, right_h = scale.floats(node[:, None] - left)
    g, h = scale.floats(node)
    least = float(np.float32(settings.min_child_weight))
    gains = gain_of(left_g, left_h, settings) + gain_of(right_g, right_h, settings)
    gains -= gain_of(np.asarray(g), np.asarray(h), settings)
    return np.where((left_h >= least) & (right_h >= least) & np.isfinite(gains), gains, np.float32(-np.inf))
