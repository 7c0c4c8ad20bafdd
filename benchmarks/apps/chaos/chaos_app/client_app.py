"""The ClientApp: adds this client's power of four to every element.

The kill harness for servers does the same work in its own process, but for plain messages; where agents and ranks are
killed, this one runs.
"""

import random
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
STEP = 1e-3
"""What the first client adds, if the node does not say otherwise (`step`)."""
LONGEST_SECONDS = 1.0
"""Of the local work, if the node does not say otherwise (`seconds`)."""


@app.train()
def train(message: Message, context: Context) -> Message:
    """One step, of the size that the node's number says; it takes up to a second, so that kills fall into it."""
    time.sleep(random.uniform(0.0, float(context.node_config.get("seconds", LONGEST_SECONDS))))
    digits = message.content.array_records["arrays"]["digits"].numpy()
    step = np.float32(float(context.node_config.get("step", STEP)) * 4 ** (int(context.node_config["number"]) - 1))
    arrays = ArrayRecord({"digits": Array(digits + step)})
    reply = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(reply, reply_to=message)
