"""Each training adds a drawn step and the number of trainings that this client had."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    times = 1
    if "kept" in context.state.metric_records:
        times += int(context.state.metric_records["kept"]["times"])
    context.state["kept"] = MetricRecord({"times": times})
    weight = message.content["arrays"]["weight"].numpy()
    weight = (weight + np.random.normal(size=weight.shape) * 0.1 + times).astype(np.float32)
    arrays = ArrayRecord({"weight": Array(weight)})
    metrics = MetricRecord({"num-examples": context.node_id, "times": float(times)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    loss = float(np.abs(message.content["arrays"]["weight"].numpy()).sum())
    metrics = MetricRecord({"num-examples": 1, "eval_loss": loss})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
