"""Regressions, correlations and survival curves: what a ClientApp answers to a step, and how a ServerApp asks them.

Each step is a query of its own, in which every client weighs 1; `fedcore.data.regression`, `fedcore.data.correlation`
and `fedcore.data.survival` have what is asked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import ArrayLike
from pydantic import TypeAdapter

from fedcore.data.correlation.matrix import Correlations
from fedcore.data.correlation.question import CorrelationQuery
from fedcore.data.regression.mixed import MixedStep
from fedcore.data.regression.mixed_fit import fit_mixed
from fedcore.data.regression.newton import Regression, fit
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.regression.step import RegressionStep, Sums
from fedcore.data.statistics import PREFIX, STEP_KEY
from fedcore.data.survival.cox import CoxStep, fit_cox
from fedcore.data.survival.curves import Survival, fit_survival
from fedcore.data.survival.question import CountStep, SurvivalQuery
from fedcore.errors import AppError, RepliesDiffer
from fedcore.flower.grid.declarations import sum_only
from fedcore.system.plain_json import from_plain, to_plain

REGRESSION_ACTION: Final = "regression"
_TYPE: Final = f"query.{REGRESSION_ACTION}"
_RECORD: Final = "regression"
_SUMS: Final = "sums"
_CLIENTS: Final = "clients"
Step: TypeAlias = RegressionStep | MixedStep | CorrelationQuery | CountStep | CoxStep
_FORM: Final[TypeAdapter[Step]] = TypeAdapter(Step)


def step_config(step: Step) -> ConfigRecord:
    """What a message says to ask this step of all rows, in columns that are not standardised (`standardised`)."""
    return ConfigRecord({f"{PREFIX}bins": 1, f"{PREFIX}all_rows": True, STEP_KEY: json.dumps(to_plain(_FORM, step))})


def step_answer(config: Mapping[str, Any], columns: Mapping[str, ArrayLike]) -> RecordDict:
    """A client's reply to the step in a message's configuration; raises AppError."""
    try:
        plain = json.loads(str(config.get(STEP_KEY, "")))
    except ValueError:
        raise AppError("the query for a regression cannot be read: it holds no step") from None
    step = from_plain(_FORM, plain, what="the query for a regression", error=AppError)
    numbers = {_CLIENTS: 1, _SUMS: step.answer(columns)}
    return RecordDict({_RECORD: MetricRecord(cast(Any, numbers))})


@sum_only
def ask_regression(grid: Grid, query: RegressionQuery, min_nodes: int = 1, timeout: float | None = None) -> Regression:
    """What the connected clients, at least `min_nodes`, say together; raises what `fit` does, and AppError."""
    nodes = _nodes(grid, min_nodes)

    if query.sites == "random":
        return fit_mixed(query, lambda step: _totals(grid, step, nodes, timeout), nodes=len(nodes))
    if query.survival is not None:
        return fit_cox(query, lambda step: _totals(grid, step, nodes, timeout), nodes=len(nodes))

    def sums(step: RegressionStep) -> Sums:
        return step.sums(*_totals(grid, step, nodes, timeout))

    return fit(query, sums, nodes=len(nodes))


@sum_only
def ask_correlations(
    grid: Grid, query: CorrelationQuery, min_nodes: int = 1, timeout: float | None = None
) -> Correlations:
    """The same for correlations; raises what `CorrelationQuery.correlations` does, and AppError."""
    nodes = _nodes(grid, min_nodes)
    return query.correlations(*_totals(grid, query, nodes, timeout), nodes=len(nodes))


@sum_only
def ask_survival(grid: Grid, query: SurvivalQuery, min_nodes: int = 1, timeout: float | None = None) -> Survival:
    """The same for survival curves; raises what `fit_survival` does, and AppError."""
    nodes = _nodes(grid, min_nodes)
    return fit_survival(query, lambda step: _totals(grid, step, nodes, timeout), nodes=len(nodes))


def _nodes(grid: Grid, least: int) -> list[int]:
    while len(nodes := sorted(grid.get_node_ids())) < max(least, 1):
        time.sleep(1.0)
    return nodes


@sum_only
def _totals(grid: Grid, step: Step, nodes: Sequence[int], timeout: float | None) -> tuple[list[float], int]:
    """One query: the sums over the clients that answer, and how many these are."""
    config = step_config(step)
    messages = [Message(RecordDict({_RECORD: config}), node, _TYPE) for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=timeout))
    contents = [reply.content for reply in replies if not reply.has_error()]
    if not contents:
        failed = [reply.error.reason for reply in replies]
        raise AppError(f"no client answered the query for a regression: {failed[0] if failed else 'no reply came'}")
    records = [cast(Mapping[str, Any], content.metric_records[_RECORD]) for content in contents]
    if any(len(record[_SUMS]) != step.length for record in records):
        raise RepliesDiffer
    total = np.sum([record[_SUMS] for record in records], axis=0)
    return total.tolist(), round(sum(record[_CLIENTS] for record in records))
