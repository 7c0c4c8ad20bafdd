"""Metrics on draws of the test examples: the same draws wherever an example is tested."""

import math

import numpy as np
import torch

from fedcore.comparison.workers.bootstrap import DRAWS, DrawnMetrics, added, figures, weights_of
from fedcore.data.types import Split
from fedcore.training.losses import cross_entropy
from fedcore.training.metrics import Metric, accuracy, auc, c_index

RNG = np.random.default_rng(5)
X = RNG.normal(size=(240, 3)).astype(np.float32)
Y = RNG.integers(0, 2, 240)
SPLIT = Split(x=X, y=Y)
OUTPUT = torch.from_numpy(np.stack([-X[:, 0], X[:, 0] + Y], axis=1))


def drawn_of(
    split: Split, output: torch.Tensor, *metrics: Metric, site: int = 0, batch: int = 64
) -> dict[str, torch.Tensor]:
    """What is noted while a test counts these outputs, batch by batch."""
    weights = weights_of(split, site)
    assert weights is not None
    notes = DrawnMetrics(metrics, weights, cross_entropy)
    targets = torch.from_numpy(split.y)
    for metric in notes.noting():
        step = len(targets) if metric.over == "set" else batch
        for begin in range(0, len(targets), step):
            metric.sums(output[begin : begin + step], targets[begin : begin + step])
    return notes.drawn


def test_an_example_is_drawn_as_often_in_any_order_and_at_any_site() -> None:
    order = RNG.permutation(len(Y))
    weights, others = weights_of(SPLIT, 0), weights_of(SPLIT.take(order), 3)
    assert weights is not None
    assert others is not None
    assert np.array_equal(weights[:, order], others)
    assert abs(weights.mean() - 1) < 0.03
    assert abs(weights.var() - 1) < 0.05
    assert len({tuple(row) for row in weights}) == DRAWS


def test_examples_without_arrays_are_known_by_site_and_row() -> None:
    weights = [weights_of(list(range(50)), site) for site in (0, 0, 1)]
    assert np.array_equal(weights[0], weights[1])  # type: ignore[arg-type]
    assert not np.array_equal(weights[0], weights[2])  # type: ignore[arg-type]
    assert weights_of(iter(()), 0) is None


def test_the_standard_error_is_that_of_a_share() -> None:
    drawn = figures(drawn_of(SPLIT, OUTPUT, accuracy), (accuracy,), cross_entropy)
    right = float((OUTPUT.argmax(1).numpy() == Y).mean())
    assert set(drawn) == {"accuracy", "loss"}
    assert abs(np.mean(drawn["accuracy"]) - right) < 0.01
    assert abs(np.std(drawn["accuracy"]) / math.sqrt(right * (1 - right) / len(Y)) - 1) < 0.25
    losses = torch.nn.functional.cross_entropy(OUTPUT, torch.from_numpy(Y), reduction="none").numpy()
    assert abs(np.std(drawn["loss"]) / (losses.std() / math.sqrt(len(Y))) - 1) < 0.25


def test_a_draw_is_the_metric_of_the_examples_that_it_has() -> None:
    weights = weights_of(SPLIT, 0)
    assert weights is not None
    times = np.repeat(np.arange(len(Y)), weights[7])
    metric = auc(50)
    expected = metric.value(metric.sums(OUTPUT[times], torch.from_numpy(Y[times])))
    drawn = figures(drawn_of(SPLIT, OUTPUT, metric), (metric,), cross_entropy)
    assert abs(drawn["auc"][7] - expected) < 1e-6


def test_pairs_are_counted_among_the_examples_of_a_draw() -> None:
    survival = Split(x=X, y=np.stack([RNG.exponential(1, 240), RNG.integers(0, 2, 240)], axis=1).astype(np.float32))
    weights = weights_of(survival, 0)
    assert weights is not None
    notes = DrawnMetrics((c_index,), weights, cross_entropy)
    (metric,) = (one for one in notes.noting() if one.name == "c_index")
    metric.sums(torch.from_numpy(X[:, :1]), torch.from_numpy(survival.y))
    times = np.repeat(np.arange(240), weights[3])
    expected = c_index.sums(torch.from_numpy(X[times, :1]), torch.from_numpy(survival.y[times]))
    assert torch.equal(notes.drawn["c_index"][3], expected)


def test_sites_are_added_and_what_one_of_them_lacks_is_left_out() -> None:
    whole = drawn_of(SPLIT, OUTPUT, accuracy)
    parts = [
        drawn_of(SPLIT.take(rows), OUTPUT[rows], accuracy, site=site)
        for site, rows in enumerate(np.split(np.arange(240), [100]))
    ]
    assert torch.equal(added(parts)["accuracy"], whole["accuracy"])
    assert set(added([whole, {"loss": whole["loss"]}])) == {"loss"}
    assert added([]) == {}


def test_what_would_take_long_is_not_drawn() -> None:
    """Of outputs as large as a language model's each example is counted once, and pairs of many examples never."""
    wide = torch.zeros(240, 40_000)
    assert "accuracy" in drawn_of(SPLIT, wide[:, :2], accuracy)
    drawn = drawn_of(SPLIT, wide, accuracy)
    assert "accuracy" in drawn
    many = Split(x=np.zeros((3000, 1), np.float32), y=np.ones((3000, 2), np.float32))
    weights = weights_of(many, 0)
    assert weights is not None
    notes = DrawnMetrics((c_index,), weights, cross_entropy)
    next(iter(notes.noting())).sums(torch.zeros(3000, 1), torch.from_numpy(many.y))
    assert "c_index" not in notes.drawn
