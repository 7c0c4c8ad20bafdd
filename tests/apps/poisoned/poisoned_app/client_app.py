"""A few steps of gradient descent; the first `poisoners` clients send something else."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from poisoned_app import EXAMPLES, data_of

app = ClientApp()
STEPS, RATE = 5, 0.1
SCALE = 30.0


@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    start = message.content["arrays"]["weight"].numpy()
    x, y = data_of(client)
    weight = start.copy()
    for _ in range(STEPS):
        weight -= RATE * 2 / EXAMPLES * x.T @ (x @ weight - y)
    if client < int(context.run_config["poisoners"]):
        update = weight - start
        if context.run_config["attack"] == "sign-flip":
            weight = start - SCALE * update
        else:  # label-flip: what the client would learn from targets of the other sign
            weight = start + SCALE * (-y @ x / EXAMPLES - start).astype(np.float32)
    metrics = MetricRecord({"num-examples": EXAMPLES})
    arrays = ArrayRecord({"weight": Array(weight.astype(np.float32))})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
