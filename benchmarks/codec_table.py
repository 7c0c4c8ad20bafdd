"""An app as Flower's documentation has it, on raw columns, and federated averaging of the same by hand.

BatchNorm's statistics of incomes change by 10^8, weights by 10^-2 and second moments of AdamW by 10^-7, all of them
tensors of a few elements, which share one scale.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
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
    """The same with AdamW, whose moments and step counters travel next to the model."""
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
        for batch in torch.split(torch.randperm(len(x), generator=order), 30):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(network(x[batch]), y[batch]))
            optimizer.step()


def start(train: Callable[..., State]) -> State:
    """What a run of this training begins with."""
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
    """As Flower's documentation has it."""
    client, server = ClientApp(), ServerApp()

    @client.train()
    def trains(message: Message, context: Context) -> Message:
        state = message.content.array_records["arrays"].to_torch_state_dict()
        new = train(
            state, context.node_config["partition-id"], message.content.config_records["config"]["server-round"]
        )
        metrics = MetricRecord({"num-examples": 300})
        return Message(content=RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(start(train)), num_rounds=ROUNDS)

    return client, server


def accuracy(state: State) -> float:
    """On tables of four other sites."""
    network = Network()
    network.load_state_dict({name: value for name, value in state.items() if not name.startswith("adamw/")})
    network.eval()
    x, y = map(torch.cat, zip(*[table(100 + site) for site in range(SITES)], strict=True))
    with torch.no_grad():
        return float((network(x).argmax(1) == y).float().mean())


def difference(seed: int) -> float:
    """By how much the accuracy of the secure model is above that of the plain one, on other tables for each seed."""

    def train(state: State, site: int, server_round: int) -> State:
        return by_sgd(state, site + 10 * seed, server_round)

    secure, plain = (accuracy(trained(train, aggregation=aggregation)) for aggregation in ("secure", "plain"))
    return secure - plain


def trained(train: Callable[..., State], **settings: object) -> State:
    """The model of a simulated run."""
    run = fedcore.simulate(app_of(train), clients=SITES, settings=settings, progress=False)
    assert run.model is not None
    return {name: torch.from_numpy(np.array(value)) for name, value in run.model.items()}
