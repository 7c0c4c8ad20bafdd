"""The ClientApp: adds one constant to every parameter, the least work that still makes an update."""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

STEP = 1e-3


@app.train()
def shift(message: Message, context: Context) -> Message:
    """Every client by a step of its own, so that the mean is nobody's update."""
    print(f"local work begins at {time.time():.3f}", flush=True)
    step = np.float32(STEP * (1 + int(context.node_config["partition-id"])))
    arrays = {name: Array(array.numpy() + step) for name, array in message.content.array_records["arrays"].items()}
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)
