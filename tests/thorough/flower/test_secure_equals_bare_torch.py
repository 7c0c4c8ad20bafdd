"""An app as Flower's documentation has it, on raw columns: secure ends where a loop of bare torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedcore
from benchmarks.codec_table import SITES, State, accuracy, app_of, by_adamw, by_hand, by_sgd, trained


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(("train", "bound"), [(by_sgd, 1e-5), (by_adamw, 1e-4)])
def test_secure_ends_where_bare_torch_does(train: Callable[..., State], bound: float, bits: int) -> None:
    """Within what training makes of float32's own rounding.

    Loops of bare torch whose means differ in the last bit end 1e-6 apart with SGD, and up to 1.5e-5 with AdamW: the
    first moment of a bias is a mean of gradients that nearly cancel.
    """
    expected = by_hand(train)
    found = trained(train, **{"field-bits": bits})
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = (found[name].double() - value.double()).norm() / value.double().norm()
        assert error < bound, name
    assert accuracy(found) == pytest.approx(accuracy(expected), abs=0.002)
    assert accuracy(expected) > 0.9


def test_counters_and_switches_are_exact() -> None:
    """Integers and booleans of a model, and whole numbers in float tensors, come out as a mean of whole numbers."""
    counts: dict[str, Any] = {
        "batches": torch.tensor(0),
        "mask": torch.zeros(5, dtype=torch.bool),
        "seen": torch.zeros(3),
        "huge": torch.zeros(2),
    }

    def count(state: State, site: int, server_round: int) -> State:
        return {
            "batches": state["batches"] + 10 * (site + 1),
            "mask": torch.tensor([True, False, site < 3, site < 1, True]),
            "seen": state["seen"] + torch.tensor([4.0, 0.0, float(site)]),
            "huge": state["huge"] + 1e6,
        }

    client, _ = app_of(count)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(counts), num_rounds=5)

    model = fedcore.simulate((client, server), clients=SITES, progress=False).model
    assert model is not None
    assert model["batches"].tolist() == 5 * 25
    assert model["mask"].tolist() == [True, False, True, False, True]
    assert model["seen"].tolist() == [20.0, 0.0, 7.5]
    assert model["huge"].tolist() == [5e6, 5e6]
