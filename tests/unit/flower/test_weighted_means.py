"""An app's own weighted mean of metrics is recognised by what it does; all else, and what does more, is not."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from flwr.server import strategy as legacy
from flwr.serverapp.strategy import FedAvg
from support.raising import raises

from fedcore.errors import AppError
from fedcore.flower.grid.aggregation_guard import check_strategy
from fedcore.flower.grid.weighted_means import is_weighted_mean

KEY = "num-examples"
SEEN: list[Any] = []
NAMES = ("loss", "accuracy")


def of_template(metrics: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """As in Flower's quickstarts."""
    accuracies = [num_examples * m["accuracy"] for num_examples, m in metrics]
    examples = [num_examples for num_examples, _ in metrics]
    return {"accuracy": sum(accuracies) / sum(examples)}


def of_every_name(metrics: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    total: float = 0
    sums: dict[str, float] = {}
    for examples, reported in metrics:
        total += examples
        for name, value in reported.items():
            sums[name] = sums.get(name, 0.0) + examples * value
    return {name: value / total for name, value in sums.items()}


def by_numpy(metrics: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    weights = [examples for examples, _ in metrics]
    return {name: np.average([m[name] for _, m in metrics], weights=weights) for name in NAMES}


def by_a_helper(metrics: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    return {f"mean_{name}": of_every_name(metrics)[name] for name in NAMES}


def messages(contents: list[RecordDict], weight_key: str) -> MetricRecord:
    total, right = 0.0, 0.0
    for content in contents:
        for record in content.metric_records.values():
            total += record[weight_key]  # type: ignore[operator]
            right += record[weight_key] * record["eval_acc"]  # type: ignore[operator]
    return MetricRecord({"eval_acc": right / total, "examples": total})


@pytest.mark.parametrize("function", [of_template, of_every_name, by_numpy, by_a_helper])
def test_a_weighted_mean_of_the_legacy_api(function: Callable[..., Any]) -> None:
    assert is_weighted_mean(function, "legacy", KEY)
    assert is_weighted_mean(function, "legacy", KEY, {"loss": 0.1, "accuracy": 0.5})
    check_strategy(legacy.FedAvg(fit_metrics_aggregation_fn=function, evaluate_metrics_aggregation_fn=function))


def test_a_weighted_mean_of_messages() -> None:
    assert is_weighted_mean(messages, "message", KEY)
    check_strategy(FedAvg(evaluate_metrics_aggr_fn=messages))
    assert is_weighted_mean(messages, "message", "rows")
    assert not is_weighted_mean(messages, "message", KEY, {"eval_loss": 0.5}), "the clients do not report it"


def test_lists_are_means_element_by_element() -> None:
    def scores(metrics: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        total = sum(n for n, _ in metrics)
        return {"scores": np.sum([n / total * np.asarray(m["scores"]) for n, m in metrics], axis=0)}

    def first(metrics: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        return {"scores": metrics[0][1]["scores"]}

    assert is_weighted_mean(scores, "legacy", KEY, {"scores": [0.5, 0.25]})
    assert not is_weighted_mean(first, "legacy", KEY, {"scores": [0.5, 0.25]})


OTHERS: dict[str, Callable[[list[tuple[int, dict[str, Any]]]], dict[str, Any]]] = {
    "plain mean": lambda metrics: {"a": sum(m["a"] for _, m in metrics) / len(metrics)},
    "largest": lambda metrics: {"a": max(m["a"] for _, m in metrics)},
    "count": lambda metrics: {"clients": len(metrics)},
    "spread": lambda metrics: {"a": statistics.fmean(m["a"] ** 2 for _, m in metrics)},
    "median": lambda metrics: {"a": sorted(m["a"] for _, m in metrics)[len(metrics) // 2]},
    "first": lambda metrics: {"a": metrics[0][1]["a"]},
    "worst is left out": lambda metrics: of_template([(n, {"accuracy": m["a"]}) for n, m in metrics if m["a"] > 0.1]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_another_function_of_the_replies_is_not(other: str) -> None:
    assert not is_weighted_mean(OTHERS[other], "legacy", KEY, {"a": 0.5})
    with raises(AppError, check="undeclared"):
        check_strategy(legacy.FedAvg(evaluate_metrics_aggregation_fn=OTHERS[other]))


def test_a_function_that_does_more_than_compute_is_never_called() -> None:
    def appends(metrics: Any) -> dict[str, Any]:
        SEEN.append(metrics)
        return of_template(metrics)

    def prints(metrics: Any) -> dict[str, Any]:
        print(metrics)  # noqa: T201
        SEEN.append(metrics)
        return of_template(metrics)

    def imports(metrics: Any) -> dict[str, Any]:
        import builtins

        builtins.print(metrics)  # noqa: T201
        return of_template(metrics)

    def within(metrics: Any) -> dict[str, Any]:
        return appends(metrics)

    def counter() -> Callable[[Any], dict[str, Any]]:
        calls = 0

        def counts(metrics: Any) -> dict[str, Any]:
            nonlocal calls
            calls += 1
            SEEN.append(calls)
            return of_template(metrics)

        return counts

    class Holds:
        def method(self, metrics: Any) -> dict[str, Any]:
            SEEN.append(metrics)
            return of_template(metrics)

    for function in (appends, prints, imports, within, counter(), Holds().method, Holds(), None):
        assert not is_weighted_mean(function, "legacy", KEY)
    assert SEEN == []
