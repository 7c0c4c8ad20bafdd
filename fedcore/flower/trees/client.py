"""Boosted trees over a federation: what a site answers while one grows. The ServerApp is `trees_server`.

    app = trees_app(data=local_data, names=COLUMNS, bounds=lambda config: BOUNDS)

A site answers queries alone, sums of numbers over its own rows: statistics of its columns, histograms of gradients of
the nodes that the message names, and the loss on its test part. What it keeps between two queries, its bins and
margins, is a cache: the message has all trees and the splits so far, and a site that was restarted makes it again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedcore.data.statistics import Bounds
from fedcore.data.types import Split
from fedcore.errors import AppError
from fedcore.flower.apps.statistics import TrainingColumns
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.flower.records import merged_values
from fedcore.trees import Ensemble, RegressionTree, Scale, histogram_sums
from fedcore.trees.ensemble import feature_names
from fedcore.trees.evaluation import loss_sums
from fedcore.trees.histograms import as_integers, gradients
from fedcore.trees.settings import LOGISTIC

SUMS: Final = "trees"
COUNTS: Final = "federation"
GROW: Final = "tree_sums"
TEST: Final = "tree_test"
PREFIX: Final = "trees-"
_MOST_SITES: Final = 256
"""Sites of a simulation whose rows one process keeps."""
_ROOM: Final = 1 << 40

Data = Callable[[LocalJob], tuple[Split, Split]]


def trees_app(
    *,
    data: Data,
    bounds: Callable[[UserConfig], Mapping[str, tuple[float, float]]],
    names: Sequence[str] | None = None,
) -> TreesApp:
    """A ClientApp for `trees_server`: boosted trees over the rows of all sites, equal to XGBoost's on the pooled rows.

    Args:
        data: training and test part of a node, features [n, d] with NaN for a missing value, and targets [n]: 0 and 1,
            or numbers. It is called in every query, so it should keep what it has read.
        bounds: between which values each column and the target "y" lie, from the run config. Where bins begin and end
            follows from counts between them; a value outside is in the outermost bin.
        names: of the features, "x0", "x1" and so on by default.
    """
    return TreesApp(data=data, names=names, bounds=bounds)


class TreesApp(ClientApp):
    """What `trees_app` makes.

    columns: the features and the target, whose statistics the ServerApp asks for.
    """

    def __init__(
        self,
        *,
        data: Data,
        names: Sequence[str] | None,
        bounds: Callable[[UserConfig], Bounds],
    ) -> None:
        super().__init__()
        self.columns = TrainingColumns(names=tuple(names) if names is not None else None, bounds=bounds)
        self.columns.answer_for(self, data)
        self._data = data
        self._sites: OrderedDict[tuple[int, int], _Site] = OrderedDict()
        for action, answer in ((GROW, self._grow), (TEST, self._test)):
            self.query(action)(_replying(answer))

    def names(self, config: UserConfig) -> tuple[str, ...]:
        """Of the features, in their order: as given, or those of the bounds."""
        bounds = cast(Callable[[UserConfig], Bounds], self.columns.bounds)(config)
        bounded = [name for name in bounds if name != "y"] if isinstance(bounds, Mapping) else []
        return feature_names(self.columns.names, len(bounded))

    def _grow(self, message: Message, context: Context) -> tuple[list[float], int]:
        config, ensemble = _read(message)
        train, _ = self._data(_job(config, context))
        key = context.run_id, context.node_id
        site = self._sites.pop(key, None) or _Site()
        self._sites[key] = site
        if len(self._sites) > _MOST_SITES:
            self._sites.popitem(last=False)
        sums = site.sums(train, ensemble, _Question.of(config, ensemble))
        return sums.tolist(), len(train)

    def _test(self, message: Message, context: Context) -> tuple[list[float], int]:
        config, ensemble = _read(message)
        _, test = self._data(_job(config, context))
        x, y = _table(test, ensemble)
        return loss_sums(ensemble.settings.objective, ensemble.margins(x), y).tolist(), len(test)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What of a tree's level is to be summed.

    nodes: whose histograms; for the root its sums come first.
    tree: the splits so far.
    start, stop: which numbers of all of these the reply holds.
    """

    nodes: NDArray[np.int64]
    tree: RegressionTree
    scale: Scale
    start: int
    stop: int

    @classmethod
    def of(cls, config: Mapping[str, Any], ensemble: Ensemble) -> _Question:
        """Raises AppError for a message that a ServerApp other than `trees_server` sent."""
        values = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
        try:
            tree = RegressionTree.empty(ensemble.settings.nodes)
            inner = np.asarray(values["inner"], np.int64)
            tree.feature[inner] = values["features"]
            tree.threshold[inner] = values["thresholds"]
            tree.default_left[inner] = values["default-left"]
            nodes = np.asarray(values["nodes"], np.int64)
            if len(nodes) and not 0 <= nodes.min() <= nodes.max() < ensemble.settings.nodes:
                raise ValueError("a node that there is not")
            if not (tree.feature < ensemble.cuts.features).all():
                raise ValueError("a feature that there is not")
            scale = Scale(gradient_bits=int(values["gradient-bits"]), hessian_bits=int(values["hessian-bits"]))
            return cls(nodes=nodes, tree=tree, scale=scale, start=int(values["start"]), stop=int(values["stop"]))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise AppError(f"the query for histograms cannot be read: {error}", check="trees-query") from None


@dataclass(slots=True)
class _Site:
    """What one site keeps between queries; each part is made again if it does not belong to the message.

    prefix: digest of the trees that `margins` is of, and of all that the bins depend on.
    """

    rows: int = -1
    bins: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    x: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    y: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    margins: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    trees: int = 0
    prefix: bytes = b""
    split: Split | None = None

    def sums(self, split: Split, ensemble: Ensemble, question: _Question) -> NDArray[np.float64]:
        """The numbers that the question asks for, whole; raises AppError for a target beyond its bounds."""
        self._follow(split, ensemble)
        scale, total = question.scale, ensemble.cuts.bins
        parts = gradients(ensemble.settings.objective, self.margins, self.y)
        g, h = as_integers(parts[0], scale.gradient_bits), as_integers(parts[1], scale.hessian_bits)
        if int(np.abs(g).sum()) > _ROOM or int(h.sum()) > _ROOM:
            raise AppError(
                "the sum of gradients has no room: a target lies outside of the bounds of y; widen them at all sites",
                check="target-bounds",
            )
        position = question.tree.leaves_of(self.x)
        histograms = histogram_sums(self.bins, position, question.nodes, (g, h), total)
        root = [[g.sum(), h.sum()]] if 0 in question.nodes else []
        numbers = np.concatenate((np.array(root, np.int64).ravel(), histograms.ravel()))
        return numbers[question.start : question.stop].astype(np.float64)

    def _follow(self, split: Split, ensemble: Ensemble) -> None:
        """Let bins and margins be those of this model."""
        if split is not self.split or self._digest(ensemble, self.trees) != self.prefix:
            self.x, self.y = _table(split, ensemble)
            self.split, self.bins = split, ensemble.cuts.bins_of(self.x)
            self.margins, self.trees = np.full(len(self.x), ensemble.base_margin, np.float32), 0
        for tree in ensemble.trees[self.trees :]:
            self.margins += tree.margins(self.x)
        self.trees = len(ensemble.trees)
        self.prefix = self._digest(ensemble, self.trees)

    @staticmethod
    def _digest(ensemble: Ensemble, trees: int) -> bytes:
        first = Ensemble(
            ensemble.settings, ensemble.cuts, ensemble.names, ensemble.base_score, ensemble.room,
            ensemble.trees[:trees],
        )  # fmt: skip
        digest = hashlib.sha256()
        for name, values in sorted(first.to_arrays().items()):
            digest.update(name.encode() + values.tobytes())
        return digest.digest()


def _replying(
    answer: Callable[[Message, Context], tuple[list[float], int]],
) -> Callable[[Message, Context], Message]:
    def reply(message: Message, context: Context) -> Message:
        sums, rows = answer(message, context)
        counts = {"clients": 1, "rows": rows}
        content = RecordDict({SUMS: MetricRecord({"sums": sums}), COUNTS: MetricRecord(cast(Any, counts))})
        return Message(content, reply_to=message)

    return reply


def _read(message: Message) -> tuple[dict[str, Any], Ensemble]:
    """The values of the message, and the model that came with it."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise AppError("the query for histograms comes without a model", check="trees-query")
    arrays = {name: array.numpy() for name, array in records[0].items()}
    return merged_values(message.content.config_records.values()), Ensemble.from_arrays(arrays)


def _job(config: Mapping[str, Any], context: Context) -> LocalJob:
    return LocalJob(config=context.run_config, node=context.node_config, message=config, client=context.node_id)


def _table(split: Split, ensemble: Ensemble) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features [n, d] and targets [n] in float32; raises AppError for what boosted trees cannot learn."""
    x, y = np.asarray(split.x, np.float32), np.asarray(split.y, np.float32)
    if x.ndim != 2 or x.shape[1] != ensemble.cuts.features or y.ndim != 1:
        raise AppError(
            f"features {list(x.shape)} and targets {list(y.shape)}: the model is for {ensemble.cuts.features} "
            "features [n, d] and one target [n]",
            check="table-shape",
        )
    if np.isinf(x).any() or not np.isfinite(y).all():
        raise AppError("a feature is infinite, or a target is no number", check="not-finite")
    if ensemble.settings.objective == LOGISTIC and not np.isin(y, (0, 1)).all():
        raise AppError(f"the objective {LOGISTIC} needs targets 0 and 1", check="binary-target")
    return x, y
