"""An app as Flower's documentation has it, on raw columns: secure ends where a loop of bare torch does.

BatchNorm's statistics of incomes change by 10^8, weights by 10^-2 and second moments of AdamW by 10^-7, all of them
tensors of a few elements, which share one scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fedcore

SITES, ROUNDS = 4, 10
State = dict[str, torch.Tensor]


def table(site: int, rows: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Age, income, weight and a finding, as a hospital's export has them, and an outcome that follows from them."""
    rng = np.random.default_rng(site)
    age, weight, finding = rng.normal(58, 12, rows), rng.normal(79, 15, rows), rng.random(rows) < 0.43
    income = rng.lognormal(10.6, 0.5, rows)
    logit = 0.08 * (age - 58) + 1.8 * (np.log(income) - 10.6) - 0.03 * (weight - 79) + 1.2 * (finding - 0.43)
    x = np.stack([age, income, weight, finding], axis=1).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy((logit + rng.normal(0, 0.3, rows) > 0).astype(np.int64))


class Network(nn.Sequential):
    """Linear layers over normalised raw columns."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.BatchNorm1d(4), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def by_sgd(state: State, site: int, server_round: int) -> State:
    """The model after two epochs on the site's table."""
    network = Network()
    network.load_state_dict(state)
    _fit(network, torch.optim.SGD(network.parameters(), lr=0.1), site, server_round)
    return network.state_dict()


def by_adamw(state: State, site: int, server_round: int) -> State:
    """The same with AdamW, whose moments and step counters travel beside the model."""
    network = Network()
    network.load_state_dict({name: value for name, value in state.items() if not name.startswith("adamw/")})
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    held = optimizer.state_dict()
    for index, _ in enumerate(network.parameters()):
        held["state"][index] = {key: state[f"adamw/{index}/{key}"].clone() for key in ("step", "exp_avg", "exp_avg_sq")}
    optimizer.load_state_dict(held)
    _fit(network, optimizer, site, server_round)
    moments = optimizer.state_dict()["state"]
    more = {f"adamw/{index}/{key}": value for index, one in moments.items() for key, value in one.items()}
    return {**network.state_dict(), **more}


def _fit(network: nn.Module, optimizer: torch.optim.Optimizer, site: int, server_round: int) -> None:
    x, y = table(site)
    order = torch.Generator().manual_seed(1000 * server_round + site)
    network.train()
    for _ in range(2):
        for batch in torch.randperm(len(x), generator=order).split(30):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()


def start(train: Callable[..., State]) -> State:
    network = Network()
    state = dict(network.state_dict())
    if train is by_adamw:
        for index, parameter in enumerate(network.parameters()):
            state[f"adamw/{index}/step"] = torch.zeros(())
            state[f"adamw/{index}/exp_avg"] = torch.zeros_like(parameter.detach())
            state[f"adamw/{index}/exp_avg_sq"] = torch.zeros_like(parameter.detach())
    return state


def by_hand(train: Callable[..., State]) -> State:
    """Federated averaging, with nothing of fedcore or Flower in it."""
    state = start(train)
    for server_round in range(1, ROUNDS + 1):
        trained = [train(state, site, server_round) for site in range(SITES)]
        state = {
            name: torch.stack([one[name].double() for one in trained]).mean(0).to(value.dtype)
            for name, value in state.items()
        }
    return state


def app_of(train: Callable[..., State]) -> tuple[ClientApp, ServerApp]:
    client, server = ClientApp(), ServerApp()

    @client.train()
    def trains(message: Message, context: Context) -> Message:
        state = message.content["arrays"].to_torch_state_dict()
        new = train(state, context.node_config["partition-id"], message.content["config"]["server-round"])
        metrics = MetricRecord({"num-examples": 300})
        return Message(content=RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(start(train)), num_rounds=ROUNDS)

    return client, server


def accuracy(state: State) -> float:
    network = Network()
    network.load_state_dict({name: value for name, value in state.items() if not name.startswith("adamw/")})
    network.eval()
    x, y = map(torch.cat, zip(*[table(100 + site) for site in range(SITES)], strict=True))
    with torch.no_grad():
        return float((network(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(("train", "bound"), [(by_sgd, 1e-5), (by_adamw, 1e-4)])
def test_secure_ends_where_bare_torch_does(train: Callable[..., State], bound: float, bits: int) -> None:
    """Within what training makes of float32's own rounding.

    Loops of bare torch whose means differ in the last bit end 1e-6 apart with SGD, and up to 1.5e-5 with AdamW: the
    first moment of a bias is a mean of gradients that nearly cancel.
    """
    expected = by_hand(train)
    run = fedcore.simulate(app_of(train), clients=SITES, settings={"field-bits": bits}, progress=False)
    assert run.model is not None
    found = {name: torch.from_numpy(np.array(run.model[name])) for name in run.model}
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
