"""Ready-made aggregations of metrics: the same from one mean as from all replies, through the codec and without it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from flwr.app import Context, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Result
from flwr.supercore.task_identity import TaskIdentity
from support.raising import raises

from fedcore.codec.metrics import MetricValue
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.apps.supervised import supervised_app
from fedcore.flower.grid.aggregation_guard import check_strategy
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.flower.strategies.metrics import (
    MetricAggregation,
    combined,
    finish,
    grid_counts,
    maximum,
    mean,
    ratio,
    total,
)
from fedcore.flower.strategies.registry import averaging_server
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.training import OptimizerConfig
from fedcore.training.losses import squared_error
from fedcore.training.metrics import Metric, accuracy, auc

GRID = (0.5, 1.0, 2.0, 4.0, math.inf)
EXAMPLES = (1, 40, 1000)
EPSILONS = (3.0, 0.25, 1.0)
HITS, POSITIVES = (1, 7, 300), (1, 20, 400)
WEIGHT_KEY = "num-examples"


def spread() -> Metric:
    """Standard deviation out of count, sum and sum of squares."""

    def value(sums: torch.Tensor) -> float:
        return math.sqrt(float(sums[2] / sums[0] - (sums[1] / sums[0]) ** 2))

    return Metric("spread", "min", 3, lambda output, targets: output, value)


def reported(index: int) -> dict[str, Any]:
    """What a client reports: sums divided by its examples."""
    examples = EXAMPLES[index]
    values = [float(index + step) for step in range(examples)]
    sums = [len(values), math.fsum(values), math.fsum(value**2 for value in values)]
    return {
        "loss": 0.5 * index,
        "hits": HITS[index] / examples,
        "positives": POSITIVES[index] / examples,
        "patients": 3 * index / examples,
        "per_class": [index / examples, 1 / examples],
        "epsilon": grid_counts(EPSILONS[index], GRID),
        "spread/sums": [value / examples for value in sums],
    }


def content(metrics: Mapping[str, MetricValue], examples: int) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({WEIGHT_KEY: examples, **metrics})})  # type: ignore[dict-item]


def replies() -> list[RecordDict]:
    return [content(reported(index), EXAMPLES[index]) for index in range(3)]


def one_reply() -> list[RecordDict]:
    """Their mean, as secure mode hands it over."""
    weight = sum(EXAMPLES)
    clients = [reported(index) for index in range(3)]

    def averaged(values: Iterable[float]) -> float:
        return math.fsum(w * v for w, v in zip(EXAMPLES, values, strict=True)) / weight

    means: dict[str, Any] = {
        name: [averaged(client[name][i] for client in clients) for i in range(len(value))]
        if isinstance(value, list)
        else averaged(client[name] for client in clients)
        for name, value in clients[0].items()
    }
    return [content(means, weight)]


ALL = combined(
    ratio("sensitivity", "hits", "positives"),
    total("patients", "per_class"),
    maximum("epsilon", GRID),
    finish([spread()]),
)


@pytest.mark.parametrize("contents", [replies(), one_reply()], ids=["replies", "mean"])
def test_figures_of_the_federation(contents: list[RecordDict]) -> None:
    found = ALL(contents, WEIGHT_KEY)
    everything = [float(i + step) for i, count in enumerate(EXAMPLES) for step in range(count)]
    spread_of_all = float(torch.tensor(everything, dtype=torch.float64).std(correction=0))
    assert found["loss"] == pytest.approx((20 + 1000) / 1041)
    assert found["sensitivity"] == pytest.approx(308 / 421)
    assert found["patients"] == pytest.approx(9.0)
    assert found["per_class"] == pytest.approx([3.0, 3.0])
    assert found["epsilon"] == 4.0
    assert found["spread"] == pytest.approx(spread_of_all)
    assert set(found) == {"loss", "sensitivity", "patients", "per_class", "epsilon", "spread"}


def test_all_of_them_are_declared() -> None:
    for aggregation in (mean(), ratio("r", "a", "b"), total("a"), maximum("a", GRID), finish([auc()]), ALL):
        check_strategy(FedAvg(train_metrics_aggr_fn=aggregation, evaluate_metrics_aggr_fn=aggregation))


def test_the_mean_is_flowers_own_default() -> None:
    own = FedAvg(evaluate_metrics_aggr_fn=mean())
    assert own.evaluate_metrics_aggr_fn(replies(), WEIGHT_KEY) == FedAvg().evaluate_metrics_aggr_fn(
        replies(), WEIGHT_KEY
    )


@pytest.mark.parametrize(("value", "bound"), [(0.0, 0.5), (0.5, 0.5), (0.51, 1.0), (5.0, math.inf)])
def test_a_value_is_counted_at_the_bound_above_it(value: float, bound: float) -> None:
    counts = grid_counts(value, GRID)
    assert sum(counts) == 1
    assert GRID[counts.index(1)] == bound


def test_the_maximum_of_a_tiny_client_among_large_ones() -> None:
    """One example in a million still shows."""
    examples = (1, 10**6)
    counts = [grid_counts(value, GRID) for value in (2.0, 0.5)]
    mean_counts = [(a + b * 10**6) / (10**6 + 1) for a, b in zip(*counts, strict=True)]
    for contents in (
        [content({"epsilon": c}, n) for c, n in zip(counts, examples, strict=True)],
        [content({"epsilon": mean_counts}, 10**6 + 1)],
    ):
        assert maximum("epsilon", GRID)(contents, WEIGHT_KEY)["epsilon"] == 2.0


def test_figures_of_personal_models_are_finished_too() -> None:
    sums = {"eval_acc": 0.5, "spread/sums": [1.0, 2.0, 5.0], "personal_spread/sums": [1.0, 2.0, 4.0]}
    found = finish([accuracy, spread()])([content(sums, 4)], WEIGHT_KEY)
    assert found == MetricRecord({"eval_acc": 0.5, "spread": 1.0, "personal_spread": 0.0})


def test_nothing_to_divide_by_is_nan() -> None:
    found = ratio("r", "a", "b")([content({"a": 1.0, "b": 0.0}, 2)], WEIGHT_KEY)
    assert math.isnan(found["r"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("aggregation", "metrics", "message"),
    [
        (total("a"), {"b": 1.0}, {"check": "no-such-metric", "match": r"'a'.*\bb\b"}),
        (maximum("a", GRID), {"a": 1.0}, {"check": "value-count", "match": r"1\D+5.*grid_counts"}),
        (ratio("r", "a", "b"), {"a": 1.0, "b": [1.0, 2.0]}, {"check": "value-count", "match": "'a'.*1.*'b'.*2"}),
        (finish([spread()]), {"spread": 1.0}, {"check": "no-such-metric", "match": "'spread/sums'"}),
        (finish([spread()]), {"spread/sums": [1.0]}, {"check": "value-count", "match": r"1\D+3"}),
    ],
)
def test_what_the_clients_do_not_report_is_named(
    aggregation: MetricAggregation, metrics: dict[str, MetricValue], message: dict[str, str]
) -> None:
    with raises(AppError, **message):
        aggregation([content(metrics, 2)], WEIGHT_KEY)


def test_grids_and_metrics_that_are_none_are_refused() -> None:
    for grid in ((), (1.0, 1.0), (2.0, 1.0)):
        with raises(AppError, check="grid-order"):
            maximum("a", grid)
    with raises(AppError, check="above-grid", match=r"2\.0"):
        grid_counts(3.0, (1.0, 2.0))
    with raises(AppError, check="above-grid"):
        grid_counts(math.nan, GRID)
    with pytest.raises(ConfigurationError, match=r"auc\(\)"):
        finish([auc])  # type: ignore[list-item]


@dataclass
class Cohort:
    """An ExchangeBackend that answers with the model as it is, and with sums of two predictions, one of them right."""

    def nodes(self) -> list[int]:
        return [1, 2]

    def report_figures(self, figures: object) -> None:
        del figures

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        state = request.model if request.message_type == "train" else None
        return [ExchangeReply(node=0, state=state, examples=4, metrics={"half/sums": [0.25, 0.5]})]


def test_an_averaging_server_finishes_the_metrics_of_its_app(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)
    half = Metric("half", "max", 2, lambda output, targets: output, lambda sums: float(sums[0] / sums[1]))
    client = supervised_app(
        model=lambda config: torch.nn.Linear(1, 1),
        optimizer=lambda config: OptimizerConfig(),
        data=lambda job: pytest.fail("nobody trains here"),
        loss=squared_error,
        metrics=[half],
    )
    config: dict[str, Any] = {"num-server-rounds": 1, "min-nodes": 2, "seed": 1}
    grid = SecureGrid(Cohort(), run_id=1)
    averaging_server(client)(grid, Context(1, 0, {}, RecordDict(), config))
    assert isinstance(grid.result, Result)
    assert grid.result.evaluate_metrics_clientapp[1] == MetricRecord({"half": 0.5})
