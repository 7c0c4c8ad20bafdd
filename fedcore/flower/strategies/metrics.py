"""Ready-made `*_metrics_aggr_fn` for Flower's strategies that give the same from one mean as from all replies.

A weighted mean of the clients' metrics, times the sum of their weights, is a sum over the clients; whatever can be read
off sums can be had without seeing a single reply. All here work alike in secure mode, in plain mode and in Flower's own
runtime, and are declared `mean_only`:

    FedAvg(evaluate_metrics_aggr_fn=finish([auc(), f1()]))
    FedAvg(train_metrics_aggr_fn=combined(total("patients"), maximum("epsilon", GRID)))

Metrics that none of them names are averaged, as Flower does by default. Noise of differential privacy is in the mean
and so in all that is read off it; a maximum means nothing then.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedcore.errors import AppError
from fedcore.flower.apps.personalization import PREFIX
from fedcore.flower.grid.declarations import mean_only
from fedcore.training.metrics import Metric, accuracy, checked_metrics

Value: TypeAlias = int | float | list[int] | list[float]
_Step: TypeAlias = Callable[[Mapping[str, Value], float], Mapping[str, Value | None]]


@mean_only
@dataclass(frozen=True, slots=True)
class MetricAggregation:
    """The weighted means of all metrics, and then what each step makes of some: its new values, None to leave one out.

    Called as Flower does, with the contents of the replies and the name of their weight. Raises AppError if the
    replies lack a metric that a step needs.
    """

    steps: tuple[_Step, ...] = ()

    def __call__(self, contents: list[RecordDict], weight_key: str) -> MetricRecord:
        means: dict[str, Value] = dict(aggregate_metricrecords(contents, weight_key))
        records = [next(iter(content.metric_records.values())) for content in contents]
        weight = math.fsum(cast(float, record[weight_key]) for record in records)
        values: dict[str, Value | None] = dict(means)
        for step in self.steps:
            values.update(step(means, weight))
        return MetricRecord(cast(Any, {name: value for name, value in values.items() if value is not None}))


def combined(*aggregations: MetricAggregation) -> MetricAggregation:
    """Several of the aggregations here as one."""
    return MetricAggregation(tuple(step for aggregation in aggregations for step in aggregation.steps))


def mean() -> MetricAggregation:
    """The mean of each metric over the clients, weighted by their examples: Flower's own default."""
    return MetricAggregation()


def ratio(name: str, numerator: str, denominator: str) -> MetricAggregation:
    """`name` = the mean of one metric over that of another; both are left out.

    A client reports, say, "hits" and "positives", each divided by its number of examples (the weight); the ratio is
    then that of the federation's sums. nan where the denominator is 0. Both may be lists of equal length.
    """

    def step(means: Mapping[str, Value], weight: float) -> dict[str, Value | None]:
        above, below = _values(means, numerator), _values(means, denominator)
        if len(above) != len(below):
            raise AppError(
                f"metric {numerator!r} has {len(above)} values, and {denominator!r} has {len(below)}",
                check="value-count",
            )
        ratios = [a / b if b else math.nan for a, b in zip(above, below, strict=True)]
        single = not isinstance(means[numerator], list)
        return {numerator: None, denominator: None, name: ratios[0] if single else ratios}

    return MetricAggregation((step,))


def total(*names: str) -> MetricAggregation:
    """Each of these metrics summed over the clients: its mean times all examples.

    A client reports its value divided by its number of examples (the weight). Lists are summed element by element.
    """

    def step(means: Mapping[str, Value], weight: float) -> dict[str, Value | None]:
        sums = {name: [value * weight for value in _values(means, name)] for name in names}
        return {name: values if isinstance(means[name], list) else values[0] for name, values in sums.items()}

    return MetricAggregation((step,))


def maximum(name: str, grid: Sequence[float]) -> MetricAggregation:
    """The smallest value of the grid that no client's `name` exceeds.

    A client reports `grid_counts(value, grid)` under this name, with the same grid: which of its values it is, and so
    how many clients there are at each, is in the sum; who they are is not. An upper bound of the true maximum, exact to
    the grid. `grid`: in ascending order. Raises AppError for another order.
    """
    _check_grid(grid)

    def step(means: Mapping[str, Value], weight: float) -> dict[str, Value | None]:
        counts = _values(means, name)
        if len(counts) != len(grid):
            raise AppError(
                f"metric {name!r} has {len(counts)} values for a grid of {len(grid)}; report grid_counts()",
                check="value-count",
            )
        filled = [value for value, count in zip(grid, counts, strict=True) if count > 0]
        return {name: float(filled[-1]) if filled else math.nan}

    return MetricAggregation((step,))


def grid_counts(value: float, grid: Sequence[float]) -> list[float]:
    """For the client: 1 at the smallest value of the grid that is not below `value`, else 0; [len(grid)].

    Raises AppError for nan and for a value above the whole grid; with math.inf as the grid's last value there is none.
    """
    _check_grid(grid)
    if math.isnan(value) or value > grid[-1]:
        raise AppError(
            f"{value} is above the grid, which ends at {grid[-1]}; a larger one, or math.inf as its end, has it",
            check="above-grid",
        )
    cell = bisect.bisect_left(grid, value)
    return [float(index == cell) for index in range(len(grid))]


def finish(metrics: Sequence[Metric]) -> MetricAggregation:
    """Each metric's figure for the whole federation, under its name, out of the sums that clients report.

    A client reports what `fedcore.training.loop.Evaluation.reported` gives: "<name>/sums", its sums divided by the
    weight of the reply, which are left out here, and the accuracy as a mean, which stays as it is. The sums of personal
    models are finished likewise. Raises ConfigurationError for what is no Metric.
    """
    checked = [metric for metric in checked_metrics(metrics) if metric is not accuracy]

    def step(means: Mapping[str, Value], weight: float) -> dict[str, Value | None]:
        values: dict[str, Value | None] = {}
        for metric, prefix in itertools.product(checked, ("", PREFIX)):
            name = prefix + metric.sums_name
            if prefix and name not in means:
                continue
            sums = torch.tensor(_values(means, name), dtype=torch.float64) * weight
            if len(sums) != metric.length:
                raise AppError(f"metric {name!r} has {len(sums)} values, not {metric.length}", check="value-count")
            values |= {name: None, prefix + metric.name: metric.value(sums)}
        return values

    return MetricAggregation((step,))


def _values(means: Mapping[str, Value], name: str) -> list[float]:
    if name not in means:
        raise AppError(
            f"the clients report no metric {name!r}; they report {', '.join(sorted(means)) or 'none'}",
            check="no-such-metric",
        )
    value = means[name]
    return list(value) if isinstance(value, list) else [value]


def _check_grid(grid: Sequence[float]) -> None:
    if not grid or not all(low < high for low, high in itertools.pairwise(grid)):
        raise AppError("a grid has at least one value, in ascending order, each once", check="grid-order")
