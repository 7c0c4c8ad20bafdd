"""Sparse embeddings under the algorithms that change a client's gradients: as dense ones, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.raising import raises
from support.several_tensors import Listed
from torch import Tensor, nn

from fedcore.errors import ConfigurationError
from fedcore.training import EngineConfig, OptimizerConfig, make_engine
from fedcore.training.algorithms import ALPHA, CONTROL, make_algorithm
from fedcore.training.engines import Engine, Proximal, Recipe
from fedcore.training.losses import squared_error

ROWS = Listed([(torch.tensor([n % 6, n % 4]), torch.tensor(float(n))) for n in range(8)])


class Words(nn.Module):
    """The mean of embeddings."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 1, sparse=sparse)
        with torch.no_grad():
            self.table.weight.copy_(torch.arange(6.0)[:, None] / 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).mean(1)


def engine(*, sparse: bool, optimizer: Any = None) -> Engine:
    optimizer = optimizer or OptimizerConfig(lr=0.1, momentum=0.5)
    return make_engine(
        Recipe(build=lambda: Words(sparse=sparse), optimizer=optimizer, loss=squared_error), EngineConfig()
    )


def sparse_adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(list(module.parameters()), lr=0.1)


@pytest.mark.parametrize("name", ["fedprox", "fednova", "scaffold", "feddyn", "adaptive-clipping"])
def test_an_algorithm_trains_sparse_embeddings_as_dense_ones(name: str) -> None:
    trained = []
    for sparse in (True, False):
        one = engine(sparse=sparse)
        rule: Any = Proximal(mu=0.3, anchor=one.snapshot())
        algorithm = make_algorithm(name, one, ["table.weight"], {ALPHA: 0.2, "clip-bound": 0.4})
        if algorithm is not None:
            for entry in algorithm.section_entries():
                assert entry.spec.name.startswith(CONTROL)
                assert entry.tensor is not None
                entry.tensor.fill_(0.25)
            algorithm.begin()
            rule = algorithm
        for batch in one.batches(ROWS, batch_size=3, epochs=2, seed=1):
            one.step(batch, clip_norm=0.5, rule=rule)
        if algorithm is not None:
            algorithm.finish()
        trained.append(one.module.state_dict()["table.weight"].clone())
    torch.testing.assert_close(*trained, rtol=1e-6, atol=1e-7)


def test_fedprox_leaves_the_optimizer_free_and_feddyn_does_not() -> None:
    one = engine(sparse=True, optimizer=sparse_adam)
    rule = Proximal(mu=0.3, anchor=one.snapshot())
    before = rule.anchor[0].clone()
    for batch in one.batches(ROWS, batch_size=3, epochs=1, seed=1):
        one.step(batch, rule=rule)
    assert not torch.equal(one.parameters()[0], before)
    with raises(ConfigurationError, check="optimizer-sparse"):
        make_algorithm("feddyn", one, ["table.weight"], {ALPHA: 0.2})
