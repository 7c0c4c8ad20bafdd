"""Several records in one message, and other content for every node: vertical learning, and two models at once."""

import time

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flower_apps.task import NODES, SIZES, arrays_of, data, initial, loss, partition_of, record_of, report

two_models_client = ClientApp()
two_models = ServerApp()
vertical_client = ClientApp()
vertical = ServerApp()


@two_models_client.train()
def train_two(message: Message, context: Context) -> Message:
    """A generator and a discriminator, say; the reply tells of each in records of their own."""
    site = partition_of(context)
    content = RecordDict()
    for name, record in message.content.array_records.items():
        moved = {key: value + np.float32(SIZES[site]) for key, value in arrays_of(record).items()}
        content[name] = record_of(moved)
        content[f"{name}-metrics"] = MetricRecord({"num-examples": SIZES[site], "loss": loss(arrays_of(record), site)})
    content["notes"] = ConfigRecord({"site": site, "raw": bytes([site]), "names": ["a", "b"]})
    return Message(content=content, reply_to=message)


@two_models.main()
def main(grid: Grid, context: Context) -> None:
    nodes = wait_for_nodes(grid)
    content = RecordDict({"generator": record_of(initial()), "discriminator": record_of(initial())})
    replies = list(grid.send_and_receive([Message(content, node, "train") for node in nodes]))
    replies.sort(key=lambda answer: answer.content["notes"]["site"])
    report(
        generators=[answer.content["generator"] for answer in replies],
        losses=[answer.content["discriminator-metrics"]["loss"] for answer in replies],
        notes=[[answer.content["notes"]["site"], answer.content["notes"]["raw"][0]] for answer in replies],
    )


@vertical_client.query("embed")
def embed(message: Message, context: Context) -> Message:
    """Each node has columns of its own: its embedding has as many values as it likes, and its weights stay with it."""
    site = partition_of(context)
    column = data(0)[0][:, : 1 + site % 2]
    weights = weights_of(context, column.shape[1])
    content = RecordDict({"embedding": record_of({"h": column @ weights}), "where": ConfigRecord({"site": site})})
    return Message(content=content, reply_to=message)


@vertical_client.train("backward")
def backward(message: Message, context: Context) -> Message:
    site = partition_of(context)
    column = data(0)[0][:, : 1 + site % 2]
    weights = weights_of(context, column.shape[1])
    gradient = arrays_of(message.content["gradient"])["h"]
    context.state["weights"] = record_of({"w": weights - np.float32(0.125) * (column.T @ gradient)})
    return Message(content=RecordDict(), reply_to=message)


def weights_of(context: Context, columns: int) -> np.ndarray:
    """This node's part of the model, kept in its context from message to message."""
    if "weights" in context.state:
        return arrays_of(context.state["weights"])["w"]
    return np.ones(columns, np.float32)


@vertical.main()
def main_vertical(grid: Grid, context: Context) -> None:
    nodes = wait_for_nodes(grid)
    wanted, errors = data(0)[1], []
    for _ in range(3):
        replies = list(grid.send_and_receive([Message(RecordDict(), node, "query.embed") for node in nodes]))
        off = sum(arrays_of(answer.content["embedding"])["h"] for answer in replies) - wanted
        errors.append(float(np.mean(off**2)))
        share = np.float32(1 / len(wanted)) * off
        gradients = [
            Message(
                RecordDict({"gradient": record_of({"h": share * np.float32(1 + answer.content["where"]["site"])})}),
                answer.metadata.src_node_id,
                "train.backward",
            )
            for answer in replies
        ]
        list(grid.send_and_receive(gradients))
    report(errors=errors)


def wait_for_nodes(grid: Grid) -> list[int]:
    """All of them."""
    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    return nodes
