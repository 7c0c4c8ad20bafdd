"""A whole run in memory against the arithmetic that it must equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.raising import raises
from support.tiny import TINY, load_problem

from fedcore.codec.scaling.error_bound import error_bound
from fedcore.errors import AppError, CohortTooSmall, ConfigurationError, EncodingError, RunFailed
from fedcore.flower.app import FlowerApp
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.state import ModelState

Simulate = Callable[..., Any]
problem = load_problem()
LR = np.float32(0.5)


def pooled_step(weight: np.ndarray) -> np.ndarray:
    return weight - LR * problem.gradient(weight, *problem.part(0, 1))


def first_round_bound(clients: int) -> float:
    """The codec's stated bound for the new weights after a first exchange."""
    model = ModelState.from_arrays(problem.initial())
    settings = FlowerApp.load(TINY).settings
    encoding = EncodingPlan(settings).encoding("train", model.layout, clients)
    return error_bound(encoding, survivors=clients, examples=problem.EXAMPLES, base=model, largest=1.0)["weight"]


def test_one_client_is_centralized_gradient_descent(simulate: Simulate) -> None:
    done = simulate(1, settings={"aggregation": "plain"}, num_server_rounds=5)
    weight = problem.initial()["weight"]
    for _ in range(5):
        weight = pooled_step(weight)
    np.testing.assert_allclose(done.state["weight"], weight, rtol=0, atol=2e-7)


@pytest.mark.parametrize("clients", [2, 4, 7])
def test_full_batch_fedsgd_is_the_pooled_gradient_step(simulate: Simulate, clients: int) -> None:
    done = simulate(clients, num_server_rounds=1)
    expected = pooled_step(problem.initial()["weight"])
    error = np.abs(done.state["weight"] - expected).max()
    bound = first_round_bound(clients)
    # The gradients of the parts and of the whole differ by float32 rounding on top of the codec's error.
    assert error <= bound + 4e-7
    assert bound < 1e-4, "a bound that anything meets says nothing"
    assert done.state["counter"] == 1
    np.testing.assert_array_equal(done.state["half"], problem.initial()["half"])
    assert done.state["half"].dtype == np.float16


def test_metrics_and_examples_travel_in_the_sum(simulate: Simulate) -> None:
    done = simulate(3)
    train, evaluate = done.of("exchange-done")
    weight = problem.initial()["weight"]
    expected = problem.loss(weight, *problem.part(0, 1))
    assert train["examples"] == evaluate["examples"] == problem.EXAMPLES
    assert train["metrics"]["train_loss"] == pytest.approx(expected, abs=1e-5)
    assert train["metrics"]["pair"] == pytest.approx([1.0, expected], abs=1e-5)
    assert evaluate["metrics"]["eval_loss"] == pytest.approx(
        problem.loss(done.state["weight"], *problem.part(0, 1)), abs=1e-5
    )


def test_secure_and_plain_give_the_same_model(simulate: Simulate) -> None:
    secure = simulate(4, num_server_rounds=3)
    plain = simulate(4, num_server_rounds=3, settings={"aggregation": "plain"})
    np.testing.assert_allclose(secure.state["weight"], plain.state["weight"], rtol=0, atol=1e-5)
    assert plain.of("started")[0]["aggregation"] == "plain"


@pytest.mark.parametrize("strategy", ["FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_strategies_of_the_mean_run_unchanged_and_keep_dtypes(simulate: Simulate, strategy: str) -> None:
    done = simulate(3, strategy=strategy, num_server_rounds=2)
    model = ModelState.from_arrays(problem.initial())
    assert done.state.layout == model.layout
    assert not np.array_equal(done.state["weight"], problem.initial()["weight"])


@pytest.mark.parametrize("strategy", ["Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg", "QFedAvg"])
def test_strategies_of_single_updates_are_refused_before_the_first_round(simulate: Simulate, strategy: str) -> None:
    with raises(AppError, check="secure-aggregation", match=f'^{strategy} .*aggregation = "plain"'):
        simulate(5, strategy=strategy)


def test_they_run_with_plain_aggregation(simulate: Simulate) -> None:
    done = simulate(5, strategy="FedMedian", settings={"aggregation": "plain"})
    assert not np.array_equal(done.state["weight"], problem.initial()["weight"])


def test_different_messages_need_plain_aggregation(simulate: Simulate) -> None:
    with raises(AppError, check="different-messages"):
        simulate(3, personal=True)
    assert simulate(3, personal=True, settings={"aggregation": "plain"}).state is not None


def test_dropouts_leave_exactly_the_mean_of_the_survivors(simulate: Simulate) -> None:
    done = simulate(9, drop=0.15, seed=4, num_server_rounds=1)
    assert done.of("dropped"), "the seed must make someone drop out"
    survivors = [int(name.removeprefix("client-")) for name in done.of("exchange-done")[0]["survivors"]]
    assert len(survivors) < 9
    parts = [problem.part(i - 1, 9) for i in survivors]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    weight = problem.initial()["weight"]
    expected = weight - LR * problem.gradient(weight, x, y)
    np.testing.assert_allclose(done.state["weight"], expected, rtol=0, atol=2e-6)


def test_too_many_dropouts_fail_the_round_and_then_the_run(simulate: Simulate) -> None:
    with pytest.raises(RunFailed, match=r"^round 1\D+3\D") as failed:
        simulate(4, drop=0.95, seed=1)
    assert isinstance(failed.value.__cause__, CohortTooSmall)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("nan", EncodingError, {"check": "not-finite"}),
        ("float64", AppError, {"match": r"'weight'.*F64"}),
        ("extra-array", AppError, {"match": "'other'"}),
        ("no-examples", AppError, {"match": "'num-examples'"}),
        ("half-example", AppError, {"match": r"'num-examples'.*1\.5"}),
        ("too-many-examples", EncodingError, {"check": "examples"}),
        ("two-metrics", AppError, {"match": r"MetricRecord.*\b2\b"}),
        ("no-arrays", AppError, {"match": r"ArrayRecord.*\b0\b"}),
    ],
)
def test_wrong_records_are_named(
    simulate: Simulate, fault: str, error: type[Exception], message: dict[str, str]
) -> None:
    with raises(error, **message):
        simulate(3, fault=fault, faulty_partition=1)


def test_a_secure_run_needs_two_clients(simulate: Simulate) -> None:
    with raises(ConfigurationError, check="too-few-clients"):
        simulate(1)


@pytest.mark.parametrize("bits", [16, 21, 32])
def test_every_field_width_converges(simulate: Simulate, bits: int) -> None:
    done = simulate(4, settings={"field-bits": bits}, num_server_rounds=8, lr=0.3)
    weight = problem.initial()["weight"]
    for _ in range(8):
        weight = weight - np.float32(0.3) * problem.gradient(weight, *problem.part(0, 1))
    np.testing.assert_allclose(done.state["weight"], weight, rtol=0, atol={16: 2e-3, 21: 1e-4, 32: 1e-5}[bits])


def test_the_digits_example_learns(simulate: Simulate) -> None:
    app = Path(__file__).parents[3] / "examples" / "digits"
    done: Any = simulate(4, app=app, num_server_rounds=3)
    evaluations = [d["metrics"]["eval_acc"] for d in done.of("exchange-done") if d["message_type"] == "evaluate"]
    assert evaluations[-1] > 0.85
