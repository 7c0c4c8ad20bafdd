"""A gradient step over this client's rows, and the loss."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

ROWS, COLUMNS = 20, 40


def rows(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """[ROWS, COLUMNS] and [ROWS], other ones for each client."""
    number = int(context.node_config["partition-id"])
    draws = np.random.default_rng(number)
    x = draws.normal(size=(ROWS + number, COLUMNS)).astype(np.float32)
    return x, (x.sum(axis=1) + np.float32(number)).astype(np.float32)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One step."""
    weight = message.content.array_records["arrays"]["weight"].numpy()
    x, y = rows(context)
    error = x @ weight - y
    stepped = (weight - np.float32(0.05 / len(x)) * (x.T @ error)).astype(np.float32)
    metrics = MetricRecord({"num-examples": len(x), "train_loss": float(np.mean(error**2))})
    content = RecordDict({"arrays": ArrayRecord({"weight": Array(stepped)}), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The mean squared error."""
    x, y = rows(context)
    error = x @ message.content.array_records["arrays"]["weight"].numpy() - y
    metrics = MetricRecord({"num-examples": len(x), "eval_loss": float(np.mean(error**2))})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
