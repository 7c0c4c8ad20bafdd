"""What the server asks of a level of the trees of a round, and how the message says it.

Trees and their nodes are one row of numbers: node n of the tree of class k is k x nodes + n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedcore.codec.privacy.query_noise import QueryNoise
from fedcore.errors import AppError, EncodingError
from fedcore.trees import Ensemble, RegressionTree, Scale
from fedcore.trees.limits import DEPTH_KEY, MESSAGE_TYPE, ROWS_KEY, TEST_TYPE
from fedcore.trees.noise import GRADIENT_BITS, hessian_bits, sensitivity
from fedcore.trees.settings import SQUARED_ERROR

GROW: Final = MESSAGE_TYPE.removeprefix("query.")
TEST: Final = TEST_TYPE.removeprefix("query.")
PREFIX: Final = "trees-"
_LISTS: Final = ("nodes", "features", "inner", "splits", "default-left", "category-nodes", "categories")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeQuestion:
    """What of one tree's level is to be summed.

    nodes: whose histograms; if the root is among them its sums come first.
    features: whose bins the histograms have, rising.
    tree: the splits so far.
    """

    nodes: NDArray[np.int64]
    features: NDArray[np.int64]
    tree: RegressionTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What of a round's trees is to be summed.

    trees: by the number of the class, 0 if there are none; rising.
    start, stop: which numbers of all of these the reply holds.
    noise: that is to be added; None for none. Then the reply holds all numbers.
    """

    trees: Mapping[int, TreeQuestion]
    scale: Scale
    start: int
    stop: int
    noise: QueryNoise | None = None
    subject: str = ""
    """What the message says of all this but `start` and `stop`: the same for all parts of one level."""

    @classmethod
    def of(cls, config: Mapping[str, Any], ensemble: Ensemble) -> Self:
        """Raises AppError for a message that a ServerApp other than `trees_server` sent."""
        values = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
        try:
            lists = {key: np.asarray(values[key], np.int64) for key in _LISTS}
            thresholds = np.asarray(values["thresholds"], np.float32)
            scale = Scale(gradient_bits=int(values["gradient-bits"]), hessian_bits=int(values["hessian-bits"]))
            if (config.get(DEPTH_KEY), config.get(ROWS_KEY)) != _limits(ensemble):
                raise ValueError("the message states other settings than the model")
            nodes = lists["nodes"]
            if not len(nodes):
                raise ValueError("no node")
            groups = np.unique(nodes // ensemble.settings.nodes).tolist()
            if not 0 <= groups[0] <= groups[-1] < ensemble.settings.groups:
                raise ValueError("a node that there is not")
            trees = {group: _tree_question(group, lists, thresholds, ensemble) for group in groups}
            start, stop = int(values.pop("start")), int(values.pop("stop"))
            noise, subject = QueryNoise.stated({"": config}), repr(sorted(values.items()))
            question = cls(trees=trees, scale=scale, start=start, stop=stop, noise=noise, subject=subject)
            question._check_noise(ensemble)
            return question
        except (EncodingError, KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise AppError(f"the query for histograms cannot be read: {error}", check="trees-query") from None

    def sizes(self, ensemble: Ensemble) -> list[int]:
        """How many numbers each tree's part has."""
        cuts = ensemble.cuts
        return [
            len(one.nodes) * 2 * len(cuts.bins_in(one.features)) + 2 * (0 in one.nodes) for one in self.trees.values()
        ]

    def _check_noise(self, ensemble: Ensemble) -> None:
        """Raise ValueError if the noise that is stated is for less than what one row changes here."""
        if self.noise is None:
            return
        release, settings = self.noise.release, ensemble.settings
        if settings.subsample < 1:
            raise ValueError("noise for each row, and a draw of rows that depends on the others")
        if release.scale < sensitivity(settings, {key: _cells(one) for key, one in self.trees.items()}):
            raise ValueError("less noise than one row needs")
        if self.scale.hessian_bits != hessian_bits(settings.objective) or not (
            settings.objective == SQUARED_ERROR or self.scale.gradient_bits == GRADIENT_BITS
        ):
            raise ValueError("noise for numbers of another scale")
        if not self.start == 0 <= self.stop == release.dimension == sum(self.sizes(ensemble)):
            raise ValueError("noise for a part of the numbers")

    def as_config(self, ensemble: Ensemble) -> ConfigRecord:
        """The inverse of `of`."""
        parts: dict[str, list[NDArray[Any]]] = {key: [] for key in (*_LISTS, "thresholds")}
        for group, one in self.trees.items():
            first, inner = group * ensemble.settings.nodes, np.flatnonzero(one.tree.feature >= 0)
            categories = [one.tree.categories_of(int(node)) for node in inner]
            parts["nodes"].append(one.nodes + first)
            parts["features"].append(one.features + group * ensemble.cuts.features)
            parts["inner"].append(inner + first)
            parts["splits"].append(one.tree.feature[inner])
            parts["thresholds"].append(one.tree.threshold[inner])
            parts["default-left"].append(one.tree.default_left[inner].astype(np.int64))
            parts["category-nodes"].append(np.repeat(inner + first, [len(codes) for codes in categories]))
            parts["categories"].append(np.concatenate([np.zeros(0, np.int64), *categories]))
        values: dict[str, Any] = {key: np.concatenate(rows).tolist() for key, rows in parts.items()}
        values |= {"gradient-bits": self.scale.gradient_bits, "hessian-bits": self.scale.hessian_bits}
        values |= {"start": self.start, "stop": self.stop}
        limits = dict(zip((DEPTH_KEY, ROWS_KEY), _limits(ensemble), strict=True))
        noise = {} if self.noise is None else self.noise.as_config()
        return ConfigRecord({**{PREFIX + key: value for key, value in values.items()}, **limits, **noise})


def _cells(one: TreeQuestion) -> int:
    """How many cells of a tree's part one row is in: one for each feature, and the sums of all rows."""
    return len(one.features) + (0 in one.nodes)


def _limits(ensemble: Ensemble) -> tuple[int, int]:
    """What the owners of the clients read: the largest depth, and the fewest rows that a node has."""
    return ensemble.settings.max_depth, ensemble.settings.least_rows


def _tree_question(
    group: int, lists: Mapping[str, NDArray[np.int64]], thresholds: NDArray[np.float32], ensemble: Ensemble
) -> TreeQuestion:
    """Of one class; raises ValueError or IndexError for what the model has no room for."""
    size, cuts = ensemble.settings.nodes, ensemble.cuts
    tree = RegressionTree.empty(size, cuts.most_levels)
    at = lists["inner"] // size == group
    inner, splits = lists["inner"][at] % size, lists["splits"][at]
    if not ((splits >= 0) & (splits < cuts.features)).all():
        raise ValueError("a feature that there is not")
    tree.feature[inner], tree.threshold[inner] = splits, thresholds[at]
    tree.default_left[inner] = lists["default-left"][at] != 0
    mine = lists["category-nodes"] // size == group
    for node, code in zip(lists["category-nodes"][mine] % size, lists["categories"][mine], strict=True):
        if not 0 <= code < cuts.most_levels:
            raise ValueError("a category that there is not")
        tree.part_categories(int(node), code)
    features = lists["features"][lists["features"] // cuts.features == group] % cuts.features
    nodes = lists["nodes"][lists["nodes"] // size == group] % size
    if not len(features):
        raise ValueError("no feature")
    if nodes.max() >= size // 2:
        raise ValueError("a node of the largest depth")
    if (np.diff(features) <= 0).any() or len(np.unique(nodes)) != len(nodes):
        raise ValueError("a feature or a node twice")
    return TreeQuestion(nodes=nodes, features=features, tree=tree)
