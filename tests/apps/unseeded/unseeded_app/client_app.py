"""Adds one to the weights."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    weight = message.content["arrays"]["weight"].numpy()
    arrays = ArrayRecord({"weight": Array(weight + 1)})
    return Message(
        content=RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 10, "eval_loss": 0.5})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
