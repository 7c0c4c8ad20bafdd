"""Every client adds up what it was sent, in its Context alone, and sends the sum."""

import os

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    sent = message.content["arrays"]["value"].numpy()
    own = context.node_config["partition-id"] + 1
    kept = context.state.get("kept")
    before = kept["value"].numpy() if kept is not None else np.zeros_like(sent)
    rounds = context.state["rounds"]["count"] if kept is not None else 0
    after = before + sent + np.float32(own)
    context.state["kept"] = ArrayRecord({"value": Array(after)})
    context.state["rounds"] = MetricRecord({"count": rounds + 1})
    print("process", os.getpid(), "client", own, flush=True)  # noqa: T201 - the tests look for it
    content = RecordDict(
        {
            "arrays": ArrayRecord({"value": Array(after)}),
            "metrics": MetricRecord({"num-examples": own, "rounds": rounds + 1}),
        }
    )
    return Message(content=content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    FedAvg(fraction_train=float(context.run_config["fraction-train"]), fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord({"value": Array(np.ones(3, np.float32))}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
