"""Adds one to the model, after a pause; client 2 pauses twice as long as client 1, and client 3 three times."""

import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    time.sleep(float(context.run_config["pause"]) * (1 + int(context.node_config["partition-id"])))
    model = [array + 1 for array in message.content["arrays"].to_numpy_ndarrays()]
    content = RecordDict({"arrays": ArrayRecord(model), "metrics": MetricRecord({"num-examples": 10})})
    return Message(content, reply_to=message)
