"""Each site draws the model to a point of its own; with as many examples as the run config says."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config, site = context.run_config, int(context.node_config["partition-id"])
    server_round = int(message.content["config"]["server-round"])
    if config["runs"]:
        with Path(str(config["runs"]), f"site-{site}").open("a") as file:
            file.write(f"{server_round}\n")
    weight = message.content["arrays"]["weight"].numpy()
    point = np.random.default_rng(site).normal(loc=5.0, size=weight.size).astype(np.float32)
    late = 0 < int(config["late-round"]) <= server_round
    rate = float(config["late-rate"]) if late else 0.5
    new = weight + np.float32(rate) * (point - weight)
    if (server_round, site) == (config["large-round"], config["large-site"]):
        new[: int(config["large-elements"])] += np.float32(config["large-by"])
    examples = int(str(config["examples"]).split()[site])
    near = float(1 / (1 + np.mean((point - weight) ** 2)))  # bounded, however large a step was
    metrics = MetricRecord({"num-examples": examples, "nearness": near})
    arrays = ArrayRecord({"weight": Array(new)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
