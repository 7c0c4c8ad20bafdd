"""One regression tree in the order of a heap: the children of node i are 2i + 1 and 2i + 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

LEAF: Final = -1
ABSENT: Final = -2
"""In place of the feature: a node that does not split, and one that the tree does not have."""


@dataclass(frozen=True, slots=True, eq=False)
class RegressionTree:
    """A tree whose nodes have room for its largest depth.

    feature: that a node splits by, LEAF or ABSENT, int32 [nodes].
    threshold: a value below it goes to the left, float32 [nodes].
    default_left: whether a missing value does, bool [nodes].
    weight: of a leaf times the learning rate, of another node without it, float32 [nodes].
    gain, cover: of a split, and the sum of hessians; float32 [nodes].
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    weight: NDArray[np.float32]
    gain: NDArray[np.float32]
    cover: NDArray[np.float32]

    @classmethod
    def empty(cls, nodes: int) -> Self:
        """Without any node."""
        floats = (np.zeros(nodes, np.float32) for _ in range(4))
        threshold, weight, gain, cover = floats
        feature = np.full(nodes, ABSENT, np.int32)
        return cls(feature, threshold, np.zeros(nodes, np.bool_), weight, gain, cover)

    def leaves_of(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The node that each row ends in; int64 [rows]. A tree without a node leaves all rows at the root."""
        position = np.zeros(len(x), np.int64)
        rows = np.arange(len(x))
        while len(rows):
            rows = rows[self.feature[position[rows]] >= 0]
            nodes = position[rows]
            values = x[rows, self.feature[nodes]]
            left = np.where(np.isnan(values), self.default_left[nodes], values < self.threshold[nodes])
            position[rows] = 2 * nodes + np.where(left, 1, 2)
        return position

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
        return {
            "base_weights": self.weight[nodes].tolist(),
            "categories": [],
            "categories_nodes": [],
            "categories_segments": [],
            "categories_sizes": [],
            "default_left": self.default_left[nodes].astype(int).tolist(),
            "id": number,
            "left_children": np.where(splits, numbers[2 * nodes + 1], -1).tolist(),
            "loss_changes": self.gain[nodes].tolist(),
            "parents": parents.tolist(),
            "right_children": np.where(splits, numbers[2 * nodes + 2], -1).tolist(),
            "split_conditions": conditions.tolist(),
            "split_indices": np.where(splits, self.feature[nodes], 0).tolist(),
            "split_type": [0] * len(nodes),
            "sum_hessian": self.cover[nodes].tolist(),
            "tree_param": {
                "num_deleted": "0",
                "num_feature": str(features),
                "num_nodes": str(len(nodes)),
                "size_leaf_vector": "1",
            },
        }


_NO_PARENT: Final = (1 << 31) - 1
