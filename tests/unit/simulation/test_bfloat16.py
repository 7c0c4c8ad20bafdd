"""A model in bfloat16: two bytes an element down with `download-bits` = 16, a float32 mean, as in bare PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedcore
from fedcore import LocalJob, Split, averaging_server, supervised_app
from fedcore.training import OptimizerConfig, seeded

CLIENTS, ROUNDS, RATE, FEATURES, CLASSES = 3, 4, 0.5, 40, 8
RNG = np.random.default_rng(3)
ROWS = Split(x=RNG.normal(size=(60, FEATURES)).astype(np.float32), y=RNG.integers(0, CLASSES, 60))
CONFIG = {"num-server-rounds": ROUNDS, "local-epochs": 1, "batch-size": 0, "fraction-evaluate": 0.0, "seed": 0}


class Narrow(nn.Linear):
    """A layer in bfloat16 whose features and logits are float32."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x.to(torch.bfloat16)).float()
        return logits


def first_model() -> nn.Module:
    with seeded(5):
        return Narrow(FEATURES, CLASSES, dtype=torch.bfloat16)


def rows_of(client: int) -> Split:
    return ROWS.take(np.arange(client, len(ROWS), CLIENTS))


def run(bits: int) -> fedcore.Run:
    def model(config: Mapping[str, Any]) -> nn.Module:
        del config
        return first_model()

    def data(job: LocalJob) -> tuple[Split, Split]:
        own = rows_of(int(job.node["partition-id"]))
        return own, own

    app = supervised_app(model=model, optimizer=lambda config: OptimizerConfig(lr=RATE), data=data)
    return fedcore.simulate(
        (app, averaging_server(app)),
        clients=CLIENTS,
        run_config=CONFIG,
        settings={"download-bits": bits},
        progress=False,
    )


def bare() -> dict[str, Tensor]:
    """Federated averaging in PyTorch alone: clients train in bfloat16, from float32 means that they round."""
    model = first_model()
    mean = {name: value.float() for name, value in model.state_dict().items()}
    for _ in range(ROUNDS):
        results = []
        for client in range(CLIENTS):
            own, rows = copy.deepcopy(model), rows_of(client)
            own.load_state_dict(mean)
            nn.functional.cross_entropy(own(torch.from_numpy(rows.x)), torch.from_numpy(rows.y)).backward()
            torch.optim.SGD(own.parameters(), lr=RATE).step()
            results.append(own.state_dict())
        mean = {name: torch.stack([one[name].float() for one in results]).mean(0) for name in mean}
    return mean


@pytest.fixture(scope="module")
def runs() -> dict[int, fedcore.Run]:
    return {bits: run(bits) for bits in (16, 32)}


def test_each_model_after_the_first_takes_two_bytes_an_element(runs: dict[int, fedcore.Run]) -> None:
    down = {bits: [int(size) for size in one.history["bytes_down"]] for bits, one in runs.items()}
    elements = CLIENTS * (FEATURES + 1) * CLASSES
    assert down[32] == [4 * elements] * ROUNDS
    assert down[16] == [4 * elements] + [2 * elements] * (ROUNDS - 1)


@pytest.mark.parametrize(("bits", "error"), [(16, 2e-2), (32, 1e-6)])
def test_the_mean_is_that_of_bare_pytorch_and_finer_than_bfloat16(
    runs: dict[int, fedcore.Run], bits: int, error: float
) -> None:
    model, mean, first = runs[bits].model, bare(), first_model().state_dict()
    assert model is not None
    for name, values in mean.items():
        moved = float((values - first[name].float()).abs().max())
        np.testing.assert_allclose(model[name], values.numpy(), atol=moved * error)
        assert model[name].dtype == np.float32
        assert not torch.equal(torch.from_numpy(model[name].copy()).bfloat16().float(), torch.from_numpy(model[name]))
