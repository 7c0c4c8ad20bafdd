"""Synthetic(alpha, beta): each number as far from device to device as the paper says."""

from __future__ import annotations

import numpy as np
import pytest
from support.raising import raises

from fedcore.data import Dataset, load_synthetic, partition
from fedcore.errors import ConfigurationError


def devices(data: Dataset) -> list[np.ndarray]:
    """Inputs of each device, both halves [n, 60]."""
    assert data.train.groups is not None
    assert data.test.groups is not None
    return [
        np.concatenate([half.x[half.groups == one] for half in (data.train, data.test)])
        for one in range(len(data.group_names))
    ]


def test_sizes_and_split() -> None:
    data = load_synthetic(1, 1, seed=3)
    sizes = np.bincount(data.train.groups) + np.bincount(data.test.groups)
    assert len(sizes) == 30
    assert sizes.min() >= 50
    np.testing.assert_array_equal(np.bincount(data.train.groups), (0.9 * sizes).astype(int))
    assert data.train.x.shape[1:] == (60,)
    assert data.train.x.dtype == np.float32
    # floor(lognormal(4, 2)) + 50: the logarithm of what is beyond 50 has mean 4 and deviation 2.
    many = load_synthetic(0, 0, devices=400, seed=1)
    beyond = np.log(np.bincount(many.train.groups) / 0.9 - 49.5)
    assert np.median(beyond) == pytest.approx(4, abs=0.4)
    assert beyond.std() == pytest.approx(2, abs=0.3)


def test_inputs_are_normal_around_a_centre_that_beta_moves() -> None:
    for beta in (0.0, 2.0):
        parts = [part for part in devices(load_synthetic(0, beta, devices=200, seed=5)) if len(part) > 100]
        within = np.mean([part.var(axis=0, ddof=1) for part in parts], axis=0)
        np.testing.assert_allclose(within, np.arange(1, 61) ** -1.2, rtol=0.15)
        centres = np.array([part.mean(axis=0) for part in parts])
        # v ~ N(B, 1) in each feature, and B ~ N(0, beta) for the device.
        assert np.mean(centres.std(axis=1)) == pytest.approx(1, abs=0.1)
        assert centres.mean(axis=1).std() == pytest.approx(np.sqrt(beta**2 + 1 / 60), rel=0.25, abs=0.05)


def test_labels_are_linear_in_the_inputs_and_alike_where_all_is_iid() -> None:
    def fitted(data: Dataset) -> float:
        """Accuracy on the training half of a softmax regression on it, by full gradient steps."""
        alike = data.train.x * np.arange(1, 61) ** 0.6
        x = np.concatenate([alike, np.ones((len(data.train), 1))], axis=1)
        weights, wanted = np.zeros((61, 10)), np.eye(10)[data.train.y]
        for _ in range(300):
            scores = x @ weights
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights -= x.T @ (p / p.sum(axis=1, keepdims=True) - wanted) / len(x)
        return float(((x @ weights).argmax(axis=1) == data.train.y).mean())

    assert fitted(load_synthetic(0, 0, devices=6, seed=2, iid=True)) > 0.9
    assert fitted(load_synthetic(1, 1, devices=1, seed=2)) > 0.9
    assert fitted(load_synthetic(0, 0, devices=6, seed=2)) < 0.9


def test_it_is_a_function_of_its_seed_with_a_client_for_each_device() -> None:
    one, same, other = (load_synthetic(0.5, 0.5, seed=seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one.train.x, same.train.x)
    assert not np.array_equal(one.train.x[:50], other.train.x[:50])
    parts = partition("natural", one, clients=30, seed=0)
    assert [len(part.train) for part in parts] == np.bincount(one.train.groups).tolist()


@pytest.mark.parametrize("numbers", [(-1, 0, 30), (0, float("nan"), 30), (0, 0, 0)])
def test_numbers_that_mean_nothing_are_refused(numbers: tuple[float, float, int]) -> None:
    alpha, beta, count = numbers
    with raises(ConfigurationError, check="synthetic-numbers"):
        load_synthetic(alpha, beta, devices=count)
