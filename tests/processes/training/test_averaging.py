"""Averages of models over real ranks, against the algorithm written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from fedcore.training.averaging import Averager, outer_sgd
from tests.support.ranks import Ranks

WEIGHTS = (0.2, 0.5, 0.3)
ROUNDS = 3


@pytest.fixture(scope="module")
def ranks():
    with Ranks(len(WEIGHTS)) as group:
        yield group


class Model(nn.Module):
    """Two dtypes, a parameter that is not trained, running statistics and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.arange(6, dtype=torch.float64).reshape(2, 3))
        self.plain = nn.Parameter(torch.ones(4))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.norm = nn.BatchNorm1d(2, affine=False)


def drift(rank: int, number: int, size: int) -> np.ndarray:
    """By how much the own training of a rank changes its model in a round."""
    return np.sin(np.arange(size) + 10.0 * rank + 100.0 * number)


def trained(lr: float, momentum: float) -> dict[str, list[float]]:
    rank = dist.get_rank()
    model = Model()
    averager = Averager(model, outer_sgd(lr=lr, momentum=momentum))
    for number in range(ROUNDS):
        with torch.no_grad():
            for parameter in (model.wide, model.plain):
                change = torch.tensor(drift(rank, number, parameter.numel()), dtype=parameter.dtype)
                parameter.add_(change.reshape(parameter.shape))
            model.norm.running_mean += rank + 1.0
            model.norm.num_batches_tracked += rank
        averager.average(WEIGHTS[rank])
    return {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()}


def written_out(start: np.ndarray, lr: float, momentum: float) -> np.ndarray:
    """Algorithm 1 of DiLoCo, with Nesterov's momentum as Sutskever et al. 2013 reformulate it."""
    shared, velocity = start.astype(np.float64), np.zeros(start.size)
    for number in range(ROUNDS):
        own = [shared + drift(rank, number, start.size) for rank in range(len(WEIGHTS))]
        gradient = sum(weight * (shared - model) for weight, model in zip(WEIGHTS, own, strict=True))
        velocity = momentum * velocity + gradient
        shared = shared - lr * (gradient + momentum * velocity)
    return shared


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.0), (0.7, 0.9)])
def test_all_ranks_go_on_from_the_outer_step(ranks: Ranks, lr: float, momentum: float):
    first, *others = ranks.run(trained, lr, momentum)
    np.testing.assert_allclose(first["wide"], written_out(np.arange(6), lr, momentum), rtol=1e-12)
    np.testing.assert_allclose(first["plain"], written_out(np.ones(4), lr, momentum), rtol=1e-5, atol=1e-6)
    assert first["frozen"] == [1.0, 1.0]
    mean = sum(weight * (rank + 1.0) for rank, weight in enumerate(WEIGHTS))
    np.testing.assert_allclose(first["norm.running_mean"], [ROUNDS * mean] * 2, rtol=1e-6)
    for rank, other in enumerate(others, start=1):
        assert {name: other[name] for name in ("wide", "plain", "norm.running_mean")} == {
            name: first[name] for name in ("wide", "plain", "norm.running_mean")
        }
        # A count is each rank's own.
        assert other["norm.num_batches_tracked"] == [ROUNDS * rank]
