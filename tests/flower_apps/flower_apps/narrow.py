"""A model with bfloat16 parameters, as Flower's documentation puts one into a record, and as it has to be."""

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from flower_apps.task import NODES, SIZES, partition_of, reply, report

raw_client, client = ClientApp(), ClientApp()
raw_server, server = ServerApp(), ServerApp()


def made() -> nn.Module:
    """The model that a run begins with."""
    model = nn.Linear(3, 1, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    return model


def widened(model: nn.Module) -> ArrayRecord:
    """As the refusal says it."""
    return ArrayRecord(
        {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()}
    )


def trained(message: Message, context: Context) -> nn.Module:
    """All weights move by the site's number."""
    model = made()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        model.weight.add_(partition_of(context))
    return model


@raw_client.train()
def train_raw(message: Message, context: Context) -> Message:
    answer = reply(message, {"num-examples": SIZES[partition_of(context)]})
    answer.content["arrays"] = ArrayRecord(trained(message, context).state_dict())
    return answer


@client.train()
def train(message: Message, context: Context) -> Message:
    answer = reply(message, {"num-examples": SIZES[partition_of(context)]})
    answer.content["arrays"] = widened(trained(message, context))
    return answer


@raw_server.main()
def main_raw(grid: Grid, context: Context) -> None:
    _run(grid, ArrayRecord(made().state_dict()))


@server.main()
def main(grid: Grid, context: Context) -> None:
    _run(grid, widened(made()))


def _run(grid: Grid, model: ArrayRecord) -> None:
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    report(arrays=strategy.start(grid=grid, initial_arrays=model, num_rounds=2).arrays)
