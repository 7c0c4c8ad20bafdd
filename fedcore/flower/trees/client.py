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
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, cast

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedcore.data.statistics import Bounds
from fedcore.data.types import Split
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.apps.statistics import TrainingColumns
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.flower.records import merged_values
from fedcore.flower.trees.question import GROW, TEST, Question, TreeQuestion
from fedcore.trees import Ensemble, histogram_sums
from fedcore.trees.ensemble import feature_names
from fedcore.trees.evaluation import loss_sums
from fedcore.trees.histograms import as_integers, gradients
from fedcore.trees.noise import clipped
from fedcore.trees.sampling import drawn_rows
from fedcore.trees.settings import LOGISTIC, MOST_LEVELS, SOFTPROB

SUMS: Final = "trees"
COUNTS: Final = "federation"
_MOST_SITES: Final = 256
"""Sites of a simulation whose rows one process keeps."""
_ROOM: Final = 1 << 40

Data = Callable[[LocalJob], tuple[Split, Split]]


def trees_app(
    *,
    data: Data,
    bounds: Callable[[UserConfig], Mapping[str, tuple[float, float]]],
    names: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> TreesApp:
    """A ClientApp for `trees_server`: boosted trees over the rows of all sites, equal to XGBoost's on the pooled rows.

    Args:
        data: training and test part of a node, features [n, d] with NaN for a missing value, and targets [n]: 0 and 1,
            numbers of classes from 0 on, or numbers. It is called in every query, so it should keep what it has read.
        bounds: between which values each column and the target "y" lie, from the run config. Where bins begin and end
            follows from counts between them; a value outside is in the outermost bin. Categories need none.
        names: of the features, "x0", "x1" and so on by default.
        categories: the levels of each column of categories, by the column's name. Its values are 0 for the first of
            them, 1 for the next and so on. Raises ConfigurationError for a column that there is not, a level that is
            named twice, or too many.
    """
    return TreesApp(data=data, names=names, bounds=bounds, categories=categories)


class TreesApp(ClientApp):
    """What `trees_app` makes.

    columns: the features and the target, whose statistics the ServerApp asks for.
    data: as given to `trees_app`.
    categories: the levels of columns of categories.
    """

    def __init__(
        self,
        *,
        data: Data,
        names: Sequence[str] | None,
        bounds: Callable[[UserConfig], Bounds],
        categories: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.categories = {name: tuple(map(str, levels)) for name, levels in categories.items()}
        _check_categories(self.categories)
        named = tuple(names) if names is not None else None
        self.columns = TrainingColumns(names=named, bounds=bounds, categories=self.categories)
        self.columns.answer_for(self, data)
        self.data = data
        self._sites: OrderedDict[tuple[int, int], _Site] = OrderedDict()
        for action, answer in ((GROW, self._grow), (TEST, self._test)):
            self.query(action)(_replying(answer))

    def over(self, parts: tuple[Split, Split]) -> TreesApp:
        """The same for the rows of one place, its training and test part."""
        bounds = cast(Callable[[UserConfig], Bounds], self.columns.bounds)
        return TreesApp(data=lambda job: parts, names=self.columns.names, bounds=bounds, categories=self.categories)

    def names(self, config: UserConfig) -> tuple[str, ...]:
        """Of the features, in their order: as given, or those of the bounds. Raises ConfigurationError."""
        bounds = cast(Callable[[UserConfig], Bounds], self.columns.bounds)(config)
        bounded = [name for name in bounds if name != "y"] if isinstance(bounds, Mapping) else []
        names = feature_names(self.columns.names, len(bounded))
        if lacking := sorted(set(self.categories) - set(names)):
            raise ConfigurationError(
                f"there is no column {lacking[0]!r} to have categories, only {', '.join(names)}", check="categories"
            )
        return names

    def bounds(self, config: UserConfig) -> dict[str, tuple[float, float]]:
        """Of the columns whose statistics are needed: the target and all without categories."""
        bounds = cast(Callable[[UserConfig], Bounds], self.columns.bounds)(config)
        if not isinstance(bounds, Mapping):
            raise ConfigurationError("boosted trees need bounds for each column by its name", check="bounds-needed")
        return {name: pair for name, pair in bounds.items() if name not in self.categories}

    def _grow(self, message: Message, context: Context) -> tuple[list[float], int]:
        config, ensemble = _read(message)
        question = Question.of(config, ensemble)
        train, _ = self.data(_job(config, context))
        key = context.run_id, context.node_id
        site = self._sites.pop(key, None) or _Site()
        self._sites[key] = site
        if len(self._sites) > _MOST_SITES:
            self._sites.popitem(last=False)
        sums = site.sums(train, ensemble, question, context.node_id)
        return sums.tolist(), len(train) if question.noise is None else 0

    def _test(self, message: Message, context: Context) -> tuple[list[float], int]:
        config, ensemble = _read(message)
        _, test = self.data(_job(config, context))
        x, y = _table(test, ensemble)
        return loss_sums(ensemble.settings.objective, ensemble.margins(x), y).tolist(), len(test)


@dataclass(slots=True)
class _Site:
    """What one site keeps between queries; each part is made again if it does not belong to the message.

    prefix: digest of the trees that `margins` is of, and of all that the bins depend on.
    """

    bins: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    x: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    y: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    margins: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    trees: int = 0
    prefix: bytes = b""
    split: Split | None = None
    noised: bool = False
    last: tuple[str, NDArray[np.float64]] = "", np.zeros(0)
    """The last question about this model, and all numbers of its answer: a level may take several queries."""

    def sums(self, split: Split, ensemble: Ensemble, question: Question, node: int) -> NDArray[np.float64]:
        """The numbers that the question asks for, whole; raises AppError for a target beyond its bounds."""
        self._follow(split, ensemble, question.noise is not None)
        if self.last[0] != question.subject:
            self.last = question.subject, self._numbers(ensemble, question, node)
        return self.last[1][question.start : question.stop]

    def _numbers(self, ensemble: Ensemble, question: Question, node: int) -> NDArray[np.float64]:
        settings, numbers = ensemble.settings, []
        parts = gradients(settings.objective, self.margins, self.y)
        for group, one in question.trees.items():
            g, h = (part.reshape(len(self.y), settings.groups)[:, group] for part in parts)
            rows = drawn_rows(settings, len(ensemble.trees) + group, node, len(self.y))
            values = self._steps(question, g[rows], h[rows])
            numbers += self._group(ensemble, one, values, rows)
        return np.concatenate(numbers).astype(np.float64)

    @staticmethod
    def _steps(
        question: Question, g: NDArray[np.float32], h: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Gradients and hessians of rows as integers, [rows] each; with noise they are clipped."""
        if question.noise is not None:
            return clipped(g, h, question.scale)
        return as_integers(g, question.scale.gradient_bits), as_integers(h, question.scale.hessian_bits)

    def _group(
        self,
        ensemble: Ensemble,
        one: TreeQuestion,
        values: tuple[NDArray[np.int64], NDArray[np.int64]],
        rows: NDArray[np.int64],
    ) -> list[NDArray[np.int64]]:
        """The sums of one tree over these rows: of all of them if the root is asked for, and the histograms."""
        g, h = values
        if int(np.abs(g).sum()) > _ROOM or int(h.sum()) > _ROOM:
            raise AppError(
                "the sum of gradients has no room: a target lies outside of the bounds of y; widen them at all sites",
                check="target-bounds",
            )
        position = one.tree.leaves_of(self.x[rows])
        bins = self.bins[rows][:, one.features]
        histograms = histogram_sums(bins, position, one.nodes, (g, h), ensemble.cuts.bins)
        own = ensemble.cuts.bins_in(one.features)
        root = [g.sum(), h.sum()] if 0 in one.nodes else []
        return [np.array(root, np.int64), histograms[:, :, own].ravel()]

    def _follow(self, split: Split, ensemble: Ensemble, noised: bool) -> None:
        """Let bins and margins be those of this model."""
        if split is not self.split or noised != self.noised or self._digest(ensemble, self.trees) != self.prefix:
            self.x, self.y = _table(split, ensemble, noised)
            self.noised = noised
            self.split, self.bins = split, ensemble.cuts.bins_of(self.x)
            self.margins, self.trees, self.prefix = ensemble.first_margins(len(self.x)), 0, b""
        if self.prefix and self.trees == len(ensemble.trees):
            return
        self.last = "", np.zeros(0)
        ensemble.add_margins(self.margins, self.x, self.trees)
        self.trees = len(ensemble.trees)
        self.prefix = self._digest(ensemble, self.trees)

    @staticmethod
    def _digest(ensemble: Ensemble, trees: int) -> bytes:
        first = replace(ensemble, trees=ensemble.trees[:trees], best=None)
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


def _table(split: Split, ensemble: Ensemble, noised: bool = False) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features [n, d] and targets [n] in float32; raises AppError for what boosted trees cannot learn.

    With noise rows that are no good are left out: the noise hides whether there is one, and an error would not.
    """
    x, y = np.asarray(split.x, np.float32), np.asarray(split.y, np.float32)
    cuts, settings = ensemble.cuts, ensemble.settings
    if x.ndim != 2 or x.shape[1] != cuts.features or y.ndim != 1 or len(x) != len(y):
        raise AppError(
            f"features {list(x.shape)} and targets {list(y.shape)}: the model is for {cuts.features} "
            "features [n, d] and one target [n]",
            check="table-shape",
        )
    if noised:
        good = _fitting(x, y, ensemble)
        return x[good], y[good]
    if np.isinf(x).any() or not np.isfinite(y).all():
        raise AppError("a feature is infinite, or a target is no number", check="not-finite")
    if settings.objective == LOGISTIC and not np.isin(y, (0, 1)).all():
        raise AppError(f"the objective {LOGISTIC} needs targets 0 and 1", check="binary-target")
    if settings.objective == SOFTPROB and not np.isin(y, np.arange(settings.num_class)).all():
        raise AppError(
            f"a target is none of the classes 0 to {settings.num_class - 1}; num-class in the run config says how "
            "many there are",
            check="class-target",
        )
    for feature in cuts.categories:
        codes = x[:, feature][~np.isnan(x[:, feature])]
        if not np.isin(codes, np.arange(len(levels := ensemble.levels[feature]))).all():
            raise AppError(
                f"column {ensemble.names[feature]!r} has a value that is none of its {len(levels)} categories: 0 "
                f"stands for {levels[0]!r}, {len(levels) - 1} for {levels[-1]!r}, NaN for a missing one",
                check="no-such-category",
            )
    return x, y


def _fitting(x: NDArray[np.float32], y: NDArray[np.float32], ensemble: Ensemble) -> NDArray[np.bool_]:
    """Which rows the trees can learn, [n]."""
    settings = ensemble.settings
    targets = {LOGISTIC: 2, SOFTPROB: settings.num_class}.get(settings.objective)
    good = np.isfinite(y) & ~np.isinf(x).any(axis=1)
    if targets:
        good &= np.isin(y, np.arange(targets))
    for feature in ensemble.cuts.categories:
        codes = x[:, feature]
        good &= np.isnan(codes) | np.isin(codes, np.arange(len(ensemble.levels[feature])))
    return good


def _check_categories(categories: Mapping[str, Sequence[str]]) -> None:
    for name, levels in categories.items():
        if not 1 <= len(levels) <= MOST_LEVELS or len(set(levels)) != len(levels):
            raise ConfigurationError(
                f"column {name!r} has {len(levels)} categories, {len(set(levels))} of them different; name each once, "
                f"and at most {MOST_LEVELS}",
                check="categories",
            )
