"""Growth of one tree by level from summed histograms, with the splits that XGBoost finds from the same sums."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.trees.cuts import Cuts
from fedcore.trees.histograms import Scale
from fedcore.trees.settings import BoostingSettings
from fedcore.trees.splits import TreeSplit, best_split, weights_of
from fedcore.trees.tree import LEAF, RegressionTree


@dataclass(slots=True)
class TreeGrowth:
    """One tree while it grows. Ask the sites for the histograms of `questions`, give their sum to `answer`, repeat.

    settings, cuts, scale: of the run.
    root: sums (gradient, hessian) over all rows, int64 [2].
    features: that the tree may split by, rising; the histograms are of their bins alone. None for all.
    siblings: whether to ask for both of two siblings. Sums with noise are no more exact as a difference.
    """

    settings: BoostingSettings
    cuts: Cuts
    scale: Scale
    root: NDArray[np.int64]
    features: NDArray[np.int64] | None = None
    siblings: bool = False
    tree: RegressionTree = field(init=False)
    _depth: int = field(default=0, init=False)
    _level: list[int] = field(default_factory=lambda: [0], init=False)
    """Nodes of this depth that may split."""
    _sums: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False)
    _parents: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False)
    """Histograms of the level above."""
    _own: Cuts = field(init=False)
    """Of the features that are drawn."""

    def __post_init__(self) -> None:
        self.tree = RegressionTree.empty(self.settings.nodes, self.cuts.most_levels)
        self._own = self.cuts if self.features is None else self.cuts.only(self.features)
        self._add_leaf(0, self.root)

    @property
    def questions(self) -> list[int]:
        """Nodes whose histograms are needed next; [] if the tree is complete.

        Of siblings it is the lighter one alone, unless both are to be asked for.
        """
        if self._depth == 0 or self.siblings:
            return list(self._level)
        return [min(pair, key=lambda node: int(self._sums[node][1])) for pair in self._pairs()]

    def answer(self, histograms: NDArray[np.int64]) -> None:
        """Split the nodes of this level by histograms that are summed over all sites.

        Args:
            histograms: of `questions`, in their order, int64 [questions, 2, bins of the features].
        """
        questions = self.questions
        if histograms.shape != (len(questions), 2, self._own.bins):
            raise UsageError(f"histograms of shape {list(histograms.shape)} answer {len(questions)} questions")
        complete = dict(zip(questions, histograms, strict=True))
        for node in questions if self._depth and not self.siblings else []:
            sibling = node + 1 if node % 2 else node - 1
            complete[sibling] = self._parents[(node - 1) // 2] - complete[node]
        level, self._level = self._level, []
        for node in level:
            split = best_split(complete[node], self._sums[node], self._own, self.scale, self.settings)
            if split is not None:
                self._split(node, split)
        self._parents = {node: complete[node] for node in level if self.tree.feature[node] >= 0}
        self._depth += 1
        if self._depth == self.settings.max_depth:
            self._level = []

    def _pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._level[::2], self._level[1::2], strict=True))

    def _add_leaf(self, node: int, sums: NDArray[np.int64]) -> None:
        g, h = self.scale.floats(sums)
        weight = weights_of(g, h, self.settings)
        self._sums[node] = sums
        self.tree.feature[node] = LEAF
        self.tree.weight[node] = weight * np.float32(self.settings.learning_rate)
        self.tree.cover[node] = h

    def _split(self, node: int, split: TreeSplit) -> None:
        g, h = self.scale.floats(self._sums[node])
        tree = self.tree
        tree.feature[node] = split.feature if self.features is None else self.features[split.feature]
        tree.threshold[node] = split.threshold
        tree.part_categories(node, split.right)
        tree.default_left[node], tree.gain[node] = split.default_left, split.gain
        tree.weight[node] = weights_of(g, h, self.settings)
        self._add_leaf(2 * node + 1, split.left)
        self._add_leaf(2 * node + 2, self._sums[node] - split.left)
        self._level += [2 * node + 1, 2 * node + 2]
