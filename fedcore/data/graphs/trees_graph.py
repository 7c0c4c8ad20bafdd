"""Boosted trees as an ONNX module: the standard's operator for trees (ai.onnx.ml 3), in front of it sets of categories.

That operator compares numbers. So each set of categories that a node sends to the right is a feature of its own: 1 for
a row whose category is in it, 0 for another, nan for a missing one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.data.graphs.table_graph import IR_VERSION, OPSET, GraphNodes
from fedcore.errors import ConfigurationError
from fedcore.trees import Ensemble
from fedcore.trees.tree import ABSENT, RegressionTree

if TYPE_CHECKING:
    import onnx

_TREES: Final = "ai.onnx.ml"
_TREES_VERSION: Final = 3
_FEATURES, _MARGINS = "features", "margins"


def trees_module(ensemble: Ensemble) -> onnx.ModelProto:
    """A program of features float32 [n, d], nan for a missing one -> margins float32 [n, outputs].

    Features and margins are those of `Ensemble.margins`; the sums are in another order, and so differ in their last
    digits. Raises ConfigurationError for a model without trees.
    """
    from onnx import TensorProto, helper

    if not ensemble.trees:
        raise ConfigurationError("the model has no trees yet", check="no-trees")
    nodes, table = GraphNodes(), _Table(features=len(ensemble.names))
    groups = ensemble.settings.groups
    for number, tree in enumerate(ensemble.trees):
        table.add(number, tree, number % groups)
    parts = [_FEATURES, *(_sets(nodes, feature, chosen) for feature, chosen in table.sets.items())]
    features = nodes.add("Concat", *parts, axis=1) if len(parts) > 1 else _FEATURES
    margins = nodes.add(
        "TreeEnsembleRegressor", features,
        domain=_TREES, n_targets=groups, base_values=np.ravel(ensemble.base_margin).tolist(), **table.attributes(),
    )  # fmt: skip
    nodes.named(margins, _MARGINS)
    graph = helper.make_graph(
        nodes.made,
        "trees",
        [helper.make_tensor_value_info(_FEATURES, TensorProto.FLOAT, ["rows", len(ensemble.names)])],
        [helper.make_tensor_value_info(_MARGINS, TensorProto.FLOAT, ["rows", groups])],
        initializer=nodes.constants,
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(_TREES, _TREES_VERSION)],
        ir_version=IR_VERSION,
        producer_name="fedcore",
    )


@dataclass(slots=True, kw_only=True)
class _Table:
    """The attributes of the operator, an entry for each node of all trees, and one for each leaf.

    features: how many the model has; those of sets follow them.
    sets: a feature of categories -> the sets of its categories that nodes send to the right.
    splits: each node that splits by a set, by its place among all nodes, with the feature and the set's number there.
    """

    features: int
    sets: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    splits: dict[int, tuple[int, int]] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, number: int, tree: RegressionTree, target: int) -> None:
        """Append a tree whose leaves count for this output."""
        nodes = np.flatnonzero(tree.feature != ABSENT)
        numbers = {int(node): at for at, node in enumerate(nodes)}
        for node in map(int, nodes):
            is_split = tree.feature[node] >= 0
            chosen = tuple(map(int, tree.categories_of(node))) if is_split else ()
            if chosen:
                sets = self.sets.setdefault(int(tree.feature[node]), [])
                if chosen not in sets:
                    sets.append(chosen)
                self.splits[len(self.columns.get("nodes_nodeids", ()))] = int(tree.feature[node]), sets.index(chosen)
            self._append(
                nodes_treeids=number,
                nodes_nodeids=numbers[node],
                nodes_modes="BRANCH_LT" if is_split else "LEAF",
                nodes_featureids=int(tree.feature[node]) if is_split else 0,
                nodes_values=0.5 if chosen else float(tree.threshold[node]) if is_split else 0.0,
                nodes_truenodeids=numbers[2 * node + 1] if is_split else 0,
                nodes_falsenodeids=numbers[2 * node + 2] if is_split else 0,
                nodes_missing_value_tracks_true=int(tree.default_left[node]) if is_split else 0,
            )
            if not is_split:
                self._append(
                    target_treeids=number,
                    target_nodeids=numbers[node],
                    target_ids=target,
                    target_weights=float(tree.weight[node]),
                )

    def _append(self, **entries: Any) -> None:
        for name, value in entries.items():
            self.columns.setdefault(name, []).append(value)

    def attributes(self) -> dict[str, list[Any]]:
        """The columns, in which nodes that split by a set name its feature."""
        first, starts = self.features, dict[int, int]()
        for feature, chosen in self.sets.items():
            starts[feature], first = first, first + len(chosen)
        columns = {**self.columns, "nodes_featureids": list(self.columns["nodes_featureids"])}
        for node, (feature, number) in self.splits.items():
            columns["nodes_featureids"][node] = starts[feature] + number
        return columns


def _sets(nodes: GraphNodes, feature: int, chosen: list[tuple[int, ...]]) -> str:
    """The name of what a column of categories is in, float32 [n, sets].

    Codes beyond all sets are in none of them, as in `RegressionTree.leaves_of`.
    """
    from onnx import TensorProto

    last = max(map(max, chosen)) + 1
    rows: NDArray[np.float32] = np.zeros(
        (last + 2, len(chosen)), np.float32
    )  # of each code, of others, of a missing one
    for number, codes in enumerate(chosen):
        rows[list(codes), number] = 1.0
    rows[-1] = np.nan
    column = nodes.add("Gather", _FEATURES, nodes.constant(np.array([feature])), axis=1)
    bounds = (nodes.constant(np.array(bound, np.float32)) for bound in (0, last))
    known = nodes.add("Cast", nodes.add("Clip", column, *bounds), to=TensorProto.INT64)
    code = nodes.add("Where", nodes.add("IsNaN", column), nodes.constant(np.array(last + 1)), known)
    return nodes.add("Gather", nodes.constant(rows), nodes.add("Reshape", code, nodes.constant(np.array([-1]))), axis=0)
