"""An update of a given norm, spread over all weights, and metrics that are known beforehand."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    weight = message.content["arrays"]["weight"].numpy()
    step = np.float32(float(context.run_config["norm"]) / np.sqrt(weight.size))
    # The number of examples and the loss are secrets: with differential privacy they may not show anywhere.
    examples = int(context.run_config["fewest-examples"]) + context.node_config["partition-id"]
    metrics = MetricRecord({"num-examples": examples, "train_loss": 1.5})
    arrays = ArrayRecord({"weight": Array(weight + step)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 3, "accuracy": float(context.run_config["accuracy"])})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
