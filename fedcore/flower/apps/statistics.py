"""Statistics over the columns of a federation: what a ClientApp answers, and what a ServerApp asks.

    add_statistics(app, lambda context: {"age": ages, "stay": days})               # ClientApp
    statistics = federated_statistics(grid, {"age": (0, 120), "stay": (0, 60)})     # ServerApp
    statistics.mean["age"], statistics.std["age"], statistics.quantile(0.5)["age"]

Apps of `supervised_app` and `local_app` with `data` answer by themselves. What a question gives is sums over clients,
in secure mode, in plain mode and under Flower's own runtime alike; `fedcore.data.statistics` has what they are made of.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import ArrayLike, NDArray

from fedcore.codec.names import NAMES_BYTES, names_json
from fedcore.data.reports.statistics_report import bounds_from
from fedcore.data.statistics import (
    BALANCED,
    BINS,
    PREFIX,
    WEIGHT_KEY,
    Bounds,
    Column,
    Statistics,
    StatisticsQuery,
    class_columns,
    pooled,
    standardised,
)
from fedcore.data.types import Split
from fedcore.errors import AppError, ConfigurationError, RepliesDiffer, RoundFailed
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.flower.grid.declarations import sum_only
from fedcore.flower.grid.known_statistics import known_statistics
from fedcore.flower.records import merged_values
from fedcore.flower.regression import REGRESSION_ACTION, step_answer
from fedcore.run.encoding_plan import QUERY_VALUES

__all__ = ["Statistics", "TrainingColumns", "add_statistics", "app_bounds", "federated_statistics", "standardised"]

ACTION: Final = "statistics"
_TYPE: Final = f"query.{ACTION}"
_COLUMNS: Final = "statistics"
_COUNTS: Final = "federation"
_AT_ONCE: Final = 16
"""Columns of an exchange whose names the server does not know yet; the names of a reply have little room."""

Columns: TypeAlias = Mapping[str, ArrayLike]
_Read: TypeAlias = Callable[[Mapping[str, Any], Context], Columns]


# --- the ClientApp --------------------------------------------------------------------------------------------------


def add_statistics(app: ClientApp, columns: Callable[[Context], Columns]) -> None:
    """Let a ClientApp answer `federated_statistics` for its columns: name -> values, numbers of any shape.

    A NaN is a missing value. The values of one place in all columns are a record, if records are to be protected.
    """
    _register(app, lambda question, context: columns(context))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingColumns:
    """The columns of an app whose data are known: of the training part, features [n, d], and the targets [n] as "y".

    names: of the features; "x0", "x1" and so on if there are none.
    classes: of the target, whose shares every client has to know as well if `class-weight` in the run config is
        "balanced" (`ClassWeights`); 0 if it has none.
    bounds: from the run config, those of the columns whose statistics every client has to know before it trains
        (`standardised`); None if they need none.
    categories: levels of the features that hold 0 for the first of them, 1 for the next and so on. Questions name each
        level as a column of its own, `sex=male`, as tables without such features have it.
    """

    names: tuple[str, ...] | None = None
    bounds: Callable[[UserConfig], Bounds] | None = None
    classes: int = 0
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def answer_for(self, app: ClientApp, data: Callable[[LocalJob], tuple[Any, Any]]) -> None:
        """Let the app answer `federated_statistics` for what `data` gives."""

        def columns(question: Mapping[str, Any], context: Context) -> Columns:
            job = LocalJob(
                config=context.run_config, node=context.node_config, message=question, client=context.node_id
            )
            parts = data(job) if question.get(f"{PREFIX}all_rows") else data(job)[:1]
            together = _together([_columns_of(part, self.names) for part in parts])
            return {**together, **self._levels(together)}

        _register(app, columns)

    def ask(
        self, grid: Grid, config: UserConfig, min_nodes: int = 1, *, earlier: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """What the clients have to be told with each round's configuration, asked over the federation.

        Args:
            grid: of the run.
            config: the run config.
            min_nodes: the fewest clients.
            earlier: what the model that the run begins with says of its columns. If it says all, nobody is asked, nor
                if the statistics are known (`known_statistics`).
        """
        if self.bounds is None:
            return {}
        bounds = self._all_bounds(self.bounds, config)
        if (known := known_statistics()) is not None:
            return known.take(bounds)
        if isinstance(bounds, Mapping) and set(bounds) <= set(earlier.get(f"{PREFIX}columns", ())):
            return dict(earlier)
        return federated_statistics(grid, bounds, min_nodes=min_nodes).as_config()

    def pooled(
        self, config: UserConfig, data: Callable[[LocalJob], tuple[Any, Any]] | None, jobs: Sequence[LocalJob]
    ) -> dict[str, Any]:
        """The same for nodes whose data are all here, as `jobs` read them; nothing if the data are not known."""
        if self.bounds is None or data is None:
            return {}
        question = StatisticsQuery.of(self._all_bounds(self.bounds, config))
        request = dict(statistics_config(question))
        splits = [data(replace(job, message={**job.message, **request}))[0] for job in jobs]
        return pooled(question, [_columns_of(split, self.names) for split in splits]).as_config()

    def _levels(self, columns: Columns) -> Columns:
        """1 for the rows of each level, 0 for the others and those without a value [n]."""
        return {
            f"{name}={level}": (np.asarray(columns[name]) == code).astype(np.float32)
            for name, levels in self.categories.items()
            if name in columns
            for code, level in enumerate(levels)
        }

    def _all_bounds(self, bounds_of: Callable[[UserConfig], Bounds], config: UserConfig) -> Bounds:
        """The bounds that the run config asks for, with those of the classes if these are to be weighed."""
        bounds = bounds_of(config)
        if config.get(WEIGHT_KEY) != BALANCED or not self.classes:
            return bounds
        if not isinstance(bounds, Mapping):
            raise ConfigurationError(
                f'{WEIGHT_KEY} = "{BALANCED}" needs bounds for each column by its name', check=WEIGHT_KEY
            )
        return {**bounds, **dict.fromkeys(class_columns(self.classes), (0.0, 1.0))}


def app_bounds(folder: Path) -> dict[str, tuple[float, float]]:
    """The bounds in the pyproject.toml of an app's folder, `[tool.fedcore.statistics.bounds]`, in their order there.

    So app and `fedcore stats` have the same ones. Raises AppError or ConfigurationError if there are none by column.
    """
    bounds = bounds_from((), FlowerApp.load(folder).statistics)
    if not isinstance(bounds, Mapping):
        raise ConfigurationError(
            "[tool.fedcore.statistics] has bounds for all columns alike, not one line for each", check="bounds-form"
        )
    return dict(bounds)


UNNAMED: Final = TrainingColumns()
"""All columns, of which the clients need to know nothing."""


def _register(app: ClientApp, read: _Read) -> None:
    @app.query(ACTION)
    def answer(message: Message, context: Context) -> Message:
        config = merged_values(message.content.config_records.values())
        question = _question(config)
        columns = read(config, context)
        if not columns:
            raise AppError("the app gives no columns to count")
        numbers = question.answer(columns, os.urandom)
        counts = {"clients": 1, "columns": len(columns)}
        content = RecordDict({_COLUMNS: MetricRecord(cast(Any, numbers)), _COUNTS: MetricRecord(cast(Any, counts))})
        return Message(content, reply_to=message)

    @app.query(REGRESSION_ACTION)
    def answer_regression(message: Message, context: Context) -> Message:
        config = merged_values(message.content.config_records.values())
        return Message(step_answer(config, read(config, context)), reply_to=message)


def _together(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts."""
    first, *others = parts
    if not others:
        return first
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in first}


def _columns_of(split: object, feature_names: Sequence[str] | None) -> Columns:
    """The columns of a split of `data`; feature_names: as `TrainingColumns.names`."""
    if not isinstance(split, Split):
        raise AppError("the statistics of a torch Dataset are not known; give its columns with add_statistics")
    x = np.asarray(split.x)
    if x.ndim != 2:
        raise AppError(
            f"the features have shape {list(x.shape)}; statistics are over the columns of a table [n, d], so give "
            "yours with add_statistics"
        )
    names = list(feature_names) if feature_names is not None else [f"x{index}" for index in range(x.shape[1])]
    if len(names) != x.shape[1] or "y" in names:
        raise AppError(
            f"there are {len(names)} feature names for {x.shape[1]} columns, or one of them is y, the target"
        )
    y = np.asarray(split.y)
    return {**dict(zip(names, x.T, strict=True)), **({"y": y} if y.ndim == 1 else {})}


# --- the ServerApp --------------------------------------------------------------------------------------------------


def federated_statistics(
    grid: Grid,
    bounds: Bounds,
    *,
    bins: int = BINS,
    epsilon: float = 0.0,
    delta: float = 1e-5,
    min_nodes: int = 1,
    timeout: float | None = None,
) -> Statistics:
    """Ask all connected clients, at least `min_nodes`, for statistics of their columns; blocks.

    Many columns take several exchanges. Raises ConfigurationError for a query that makes no sense, AppError if nobody
    can answer it, RepliesDiffer if the clients do not have the same columns.

    Args:
        bounds: (low, high) of each column by its name, or one pair for all columns that there are.
        bins: cells of each histogram.
        epsilon, delta: differential privacy of each record of a client in all of it together; 0 for none.
    """
    return answered(grid, StatisticsQuery.of(bounds, bins=bins, epsilon=epsilon, delta=delta), min_nodes, timeout)


@sum_only
def answered(grid: Grid, question: StatisticsQuery, min_nodes: int = 1, timeout: float | None = None) -> Statistics:
    """What the clients answer to a question.

    Raises RoundFailed if a question of all rows, whose columns belong together, is answered by several sets of clients.
    """
    nodes = node_ids(grid, min_nodes)
    columns: dict[str, Column] = {}
    clients = len(nodes)
    for part in _named_parts(question) if question.names else _pages(question):
        sums, counts = _ask(grid, part, nodes, timeout)
        answers = round(counts["clients"])
        if question.all_rows and columns and answers != clients:
            raise RoundFailed(
                f"the {clients} clients of the first query of this table are not those of a later one, {answers}, so "
                "that its numbers would not add up; ask again when all are there",
                check="other-clients",
            )
        clients = min(clients, answers)
        names = part.names or sorted(sums, key=_natural)  # a sum has no other order
        columns |= {name: part.column(name, index, sums[name]) for index, name in enumerate(names)}
        if not question.names and part.first + part.most >= round(counts["columns"] / counts["clients"]):
            break
    return Statistics(
        columns=columns, clients=clients, asked=len(nodes), epsilon=question.epsilon, delta=question.delta
    )


def node_ids(grid: Grid, least: int) -> list[int]:
    """The connected clients, ascending, once there are at least so many; blocks."""
    while len(nodes := sorted(grid.get_node_ids())) < max(least, 1):
        time.sleep(1.0)
    return nodes


def _natural(name: str) -> list[tuple[int, str]]:
    """x2 before x10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _pages(question: StatisticsQuery) -> Iterator[StatisticsQuery]:
    """The columns in the order in which the app gives them, some at a time, without an end."""
    most = max(1, min(_AT_ONCE, QUERY_VALUES // question.length))
    first = 0
    while True:
        yield replace(question, first=first, most=most)
        first += most


def _named_parts(question: StatisticsQuery) -> list[StatisticsQuery]:
    """As many columns at a time as have room in one reply."""
    parts: list[list[str]] = [[]]
    for name in question.names:
        more = [*parts[-1], name]
        entries = [(f"{_COLUMNS}/{column}", question.length) for column in more]
        room = len(names_json([*entries, (f"{_COUNTS}/clients", None), (f"{_COUNTS}/columns", None)]))
        if parts[-1] and (room > NAMES_BYTES or len(more) * question.length + 2 > QUERY_VALUES):
            parts.append([name])
        else:
            parts[-1] = more
    return [question.only(part, releases=len(parts)) for part in parts]


def _ask(
    grid: Grid, question: StatisticsQuery, nodes: Sequence[int], timeout: float | None
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Sums over the clients that answer: of the numbers of each column, and of the counts."""
    config = statistics_config(question)
    messages = [Message(RecordDict({_COLUMNS: config}), node, _TYPE) for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=timeout))
    failed = [reply for reply in replies if reply.has_error()]
    contents = [reply.content for reply in replies if not reply.has_error()]
    if not contents:
        reason = failed[0].error.reason if failed else "no reply came"
        raise AppError(f"no client answered the query for statistics: {reason}")
    sums: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, float] = defaultdict(float)
    for content in contents:
        answers = cast(Mapping[str, list[float]], content.metric_records[_COLUMNS])
        if sums and set(answers) != set(sums):
            raise RepliesDiffer
        for name, numbers in answers.items():
            sums[name] = sums.get(name, np.zeros(question.length)) + np.asarray(numbers, np.float64)
        for name, number in content.metric_records[_COUNTS].items():
            counts[name] += cast(float, number)
    return {name: total.tolist() for name, total in sums.items()}, counts


# --- what travels ---------------------------------------------------------------------------------------------------


def statistics_config(question: StatisticsQuery) -> ConfigRecord:
    """What a message says to ask this question."""
    values: dict[str, Any] = {
        "low": list(question.low),
        "high": list(question.high),
        "bins": question.bins,
        "epsilon": question.epsilon,
        "delta": question.delta,
        "releases": question.releases,
        "first": question.first,
        "most": question.most,
    }
    if question.names:
        values["names"] = list(question.names)
    if question.all_rows:
        values["all_rows"] = True
    return ConfigRecord({PREFIX + key: value for key, value in values.items()})


def _question(config: Mapping[str, Any]) -> StatisticsQuery:
    values = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
    lists: dict[str, Any] = {key: tuple(values.pop(key, ())) for key in ("names", "low", "high")}
    try:
        return StatisticsQuery(**lists, **values)
    except (TypeError, ConfigurationError) as error:
        raise AppError(f"the query for statistics cannot be read: {error}") from None
