"""One regression tree in the order of a heap: the children of node i are 2i + 1 and 2i + 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

LEAF: Final = -1
ABSENT: Final = -2
"""In place of the feature: a node that does not split, and one that the tree does not have."""
_NO_PARENT: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class RegressionTree:
    """A tree whose nodes have room for its largest depth.

    feature: that a node splits by, LEAF or ABSENT, int32 [nodes].
    threshold: a value below it goes to the left, float32 [nodes].
    default_left: whether a missing value does, bool [nodes].
    weight: of a leaf times the learning rate, of another node without it, float32 [nodes].
    gain, cover: of a split, and the sum of hessians; float32 [nodes].
    categories: which categories go to the right, one bit each, the first in the lowest bit of the first byte; a node
        with none splits at its threshold. uint8 [nodes, bytes].
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    weight: NDArray[np.float32]
    gain: NDArray[np.float32]
    cover: NDArray[np.float32]
    categories: NDArray[np.uint8]

    @classmethod
    def empty(cls, nodes: int, levels: int = 0) -> Self:
        """Without any node, with room for the categories of a column of so many levels."""
        threshold, weight, gain, cover = (np.zeros(nodes, np.float32) for _ in range(4))
        feature = np.full(nodes, ABSENT, np.int32)
        categories = np.zeros((nodes, -(-levels // 8)), np.uint8)
        return cls(feature, threshold, np.zeros(nodes, np.bool_), weight, gain, cover, categories)

    @classmethod
    def from_xgboost(cls, document: Mapping[str, Any], nodes: int, levels: int = 0) -> Self:
        """A tree of XGBoost's JSON, with room for so many nodes; raises IndexError if it is deeper.

        Args:
            levels: as in `empty`.
        """
        tree = cls.empty(nodes, levels)
        segments = zip(document["categories_segments"], document["categories_sizes"], strict=True)
        chosen = [np.array(document["categories"][start : start + size], np.int64) for start, size in segments]
        by_category = dict(zip(document["categories_nodes"], chosen, strict=True))
        places = [(0, 0)]
        while places:
            number, at = places.pop()
            left, condition = document["left_children"][number], document["split_conditions"][number]
            tree.default_left[at] = document["default_left"][number]
            tree.cover[at] = document["sum_hessian"][number]
            if left < 0:
                tree.feature[at], tree.weight[at] = LEAF, condition
                continue
            tree.feature[at], tree.weight[at] = document["split_indices"][number], document["base_weights"][number]
            tree.gain[at] = document["loss_changes"][number]
            if number in by_category:
                tree.part_categories(at, by_category[number])
            else:
                tree.threshold[at] = condition
            places += [(left, 2 * at + 1), (document["right_children"][number], 2 * at + 2)]
        return tree

    def part_categories(self, node: int, right: NDArray[np.int64]) -> None:
        """Let the node send these categories to the right; raises IndexError for one beyond the room that there is."""
        chosen = np.zeros(8 * self.categories.shape[1], np.uint8)
        chosen[right] = 1
        self.categories[node] |= np.packbits(chosen, bitorder="little")

    def categories_of(self, node: int) -> NDArray[np.int64]:
        """The categories that the node sends to the right, rising."""
        return np.flatnonzero(np.unpackbits(self.categories[node], bitorder="little"))

    def leaves_of(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The node that each row ends in; int64 [rows]. A tree without a node leaves all rows at the root.

        As in XGBoost, a category that no row of the training had goes to the left.
        """
        position = np.zeros(len(x), np.int64)
        rows = np.arange(len(x))
        by_category: NDArray[np.bool_] = self.categories.max(axis=1, initial=0) > 0
        while len(rows):
            rows = rows[self.feature[position[rows]] >= 0]
            nodes = position[rows]
            values = x[rows, self.feature[nodes]]
            left = values < self.threshold[nodes]
            at = np.flatnonzero(by_category[nodes])
            left[at] = ~self._chosen(nodes[at], values[at])
            left = np.where(np.isnan(values), self.default_left[nodes], left)
            position[rows] = 2 * nodes + np.where(left, 1, 2)
        return position

    def _chosen(self, nodes: NDArray[np.int64], values: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each value is a category that its node sends to the right."""
        levels = 8 * self.categories.shape[1]
        with np.errstate(invalid="ignore"):
            inside = (values > -1) & (values < levels)
        codes = np.where(inside, values, 0).astype(np.int64)
        chosen: NDArray[np.bool_] = inside & ((self.categories[nodes, codes // 8] >> (codes % 8)) & 1).astype(np.bool_)
        return chosen

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the tree adds to the margin of each row, float32 [rows]."""
        margins: NDArray[np.float32] = self.weight[self.leaves_of(x)]
        return margins

    def as_xgboost(self, number: int, features: int) -> dict[str, Any]:
        """The tree as XGBoost's JSON has it, nodes level by level."""
        nodes = np.flatnonzero(self.feature != ABSENT)
        numbers = np.full(2 * len(self.feature) + 1, -1, np.int64)
        numbers[nodes] = np.arange(len(nodes))
        splits = self.feature[nodes] >= 0
        parents = np.where(nodes == 0, _NO_PARENT, numbers[np.maximum(nodes - 1, 0) // 2])
        conditions = np.where(splits, self.threshold[nodes], self.weight[nodes])
        by_category: NDArray[np.bool_] = self.categories[nodes].max(axis=1, initial=0) > 0
        parts = [self.categories_of(node) for node in nodes[by_category]]
        sizes = [len(part) for part in parts]
        return {
            "base_weights": self.weight[nodes].tolist(),
            "categories": [int(code) for part in parts for code in part],
            "categories_nodes": np.flatnonzero(by_category).tolist(),
            "categories_segments": (np.cumsum([0, *sizes])[: len(sizes)]).tolist(),
            "categories_sizes": sizes,
            "default_left": self.default_left[nodes].astype(int).tolist(),
            "id": number,
            "left_children": np.where(splits, numbers[2 * nodes + 1], -1).tolist(),
            "loss_changes": self.gain[nodes].tolist(),
            "parents": parents.tolist(),
            "right_children": np.where(splits, numbers[2 * nodes + 2], -1).tolist(),
            "split_conditions": conditions.tolist(),
            "split_indices": np.where(splits, self.feature[nodes], 0).tolist(),
            "split_type": by_category.astype(int).tolist(),
            "sum_hessian": self.cover[nodes].tolist(),
            "tree_param": {
                "num_deleted": "0",
                "num_feature": str(features),
                "num_nodes": str(len(nodes)),
                "size_leaf_vector": "1",
            },
        }
