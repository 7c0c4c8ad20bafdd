"""Growth of one tree by level from summed histograms: the splits that XGBoost 3.2's `hist` finds from the same sums.

Follows src/tree/hist/evaluate_splits.h, split_evaluator.h and param.h there, with its types: sums in double, gains
and weights in float32. Sums here are integers, so a difference (the sibling's histogram, the missing values) is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.trees.cuts import Cuts
from fedcore.trees.histograms import Scale
from fedcore.trees.settings import BoostingSettings
from fedcore.trees.tree import LEAF, RegressionTree

_LEAST_GAIN: Final = np.float32(1e-6)
"""XGBoost's kRtEps."""


class TreeSplit(NamedTuple):
    """The best split of a node: integer sums (gradient, hessian) of its left side, [2]."""

    feature: int
    threshold: np.float32
    default_left: bool
    gain: np.float32
    left: NDArray[np.int64]


@dataclass(slots=True)
class TreeGrowth:
    """One tree while it grows. Ask the sites for the histograms of `questions`, give their sum to `answer`, repeat.

    settings, cuts, scale: of the run.
    root: sums (gradient, hessian) over all rows, int64 [2].
    """

    settings: BoostingSettings
    cuts: Cuts
    scale: Scale
    root: NDArray[np.int64]
    tree: RegressionTree = field(init=False)
    _depth: int = field(default=0, init=False)
    _level: list[int] = field(default_factory=lambda: [0], init=False)
    """Nodes of this depth that may split."""
    _sums: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False)
    _parents: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False)
    """Histograms of the level above."""

    def __post_init__(self) -> None:
        self.tree = RegressionTree.empty(self.settings.nodes)
        self._add_leaf(0, self.root)

    @property
    def questions(self) -> list[int]:
        """Nodes whose histograms are needed next, of siblings the lighter one alone; [] if the tree is complete."""
        if self._depth == 0:
            return list(self._level)
        return [min(pair, key=lambda node: int(self._sums[node][1])) for pair in self._pairs()]

    def answer(self, histograms: NDArray[np.int64]) -> None:
        """TreeSplit the nodes of this level by histograms that are summed over all sites.

        Args:
            histograms: of `questions`, in their order, int64 [questions, 2, bins].
        """
        questions = self.questions
        if histograms.shape != (len(questions), 2, self.cuts.bins):
            raise UsageError(f"histograms of shape {list(histograms.shape)} answer {len(questions)} questions")
        complete = dict(zip(questions, histograms, strict=True))
        for node in questions[:] if self._depth else []:
            sibling = node + 1 if node % 2 else node - 1
            complete[sibling] = self._parents[(node - 1) // 2] - complete[node]
        level, self._level = self._level, []
        for node in level:
            split = best_split(complete[node], self._sums[node], self.cuts, self.scale, self.settings)
            if split is not None:
                self._split(node, split)
        self._parents = {node: complete[node] for node in level if self.tree.feature[node] >= 0}
        self._depth += 1
        if self._depth == self.settings.max_depth:
            self._level = []

    def _pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._level[::2], self._level[1::2], strict=True))

    def _add_leaf(self, node: int, sums: NDArray[np.int64]) -> None:
        g, h = _floats(sums, self.scale)
        weight = leaf_weight(g, h, self.settings)
        self._sums[node] = sums
        self.tree.feature[node] = LEAF
        self.tree.weight[node] = weight * np.float32(self.settings.learning_rate)
        self.tree.cover[node] = h

    def _split(self, node: int, split: TreeSplit) -> None:
        g, h = _floats(self._sums[node], self.scale)
        tree = self.tree
        tree.feature[node], tree.threshold[node] = split.feature, split.threshold
        tree.default_left[node], tree.gain[node] = split.default_left, split.gain
        tree.weight[node] = leaf_weight(g, h, self.settings)
        self._add_leaf(2 * node + 1, split.left)
        self._add_leaf(2 * node + 2, self._sums[node] - split.left)
        self._level += [2 * node + 1, 2 * node + 2]


def leaf_weight(g: float, h: float, settings: BoostingSettings) -> np.float32:
    """A leaf's weight before the learning rate."""
    if h < np.float32(settings.min_child_weight) or h <= 0:
        return np.float32(0)
    return np.float32(-g / (h + float(np.float32(settings.reg_lambda))))


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
    best = forward.max() if forward.max() >= backward.max() else backward.max()
    if not best > _LEAST_GAIN or best < np.float32(settings.gamma):
        return None
    feature = int(owner[np.flatnonzero((forward == best) | (backward == best))[0]])
    span = slice(int(cuts.starts[feature]), int(cuts.starts[feature + 1]))
    if (forward[span] == best).any():
        at, sums, default_left = span.start + int(np.argmax(forward[span] == best)), left, False
        threshold = cuts.values[at]
    else:
        at, sums, default_left = span.stop - 1 - int(np.argmax((backward[span] == best)[::-1])), lower, True
        threshold = cuts.values[at - 1]
    part = sums[:, at].copy()
    if part[1] == 0 or part[1] == node[1]:
        return None
    return TreeSplit(feature, threshold, default_left, np.float32(best), part)


def _gains(
    left: NDArray[np.int64], node: NDArray[np.int64], settings: BoostingSettings, scale: Scale
) -> NDArray[np.float32]:
    """What each split gains over the node as a leaf, -inf where a side is too light; float32 [bins]."""
    left_g, left_h = _floats(left, scale)
    right_g, right_h = _floats(node[:, None] - left, scale)
    g, h = _floats(node, scale)
    least = float(np.float32(settings.min_child_weight))
    gains = gain_of(left_g, left_h, settings) + gain_of(right_g, right_h, settings)
    gains -= gain_of(np.asarray(g), np.asarray(h), settings)
    return np.where((left_h >= least) & (right_h >= least) & np.isfinite(gains), gains, np.float32(-np.inf))


def _floats(sums: NDArray[np.int64], scale: Scale) -> tuple[Any, Any]:
    return np.ldexp(sums[0].astype(np.float64), -scale.gradient_bits), np.ldexp(
        sums[1].astype(np.float64), -scale.hessian_bits
    )
