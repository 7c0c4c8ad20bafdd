"""One full-batch gradient step a round, or a fault that the run config asks for."""

import os
import signal
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tiny_app.problem import gradient, loss, part

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = context.run_config
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    x, y = part(context.node_config["partition-id"], context.node_config["num-partitions"])
    if config["gate"] and config["gated-partition"] in (-1, context.node_config["partition-id"]):
        wait_at(Path(str(config["gate"])))
    before = loss(arrays["weight"], x, y)
    arrays["weight"] = arrays["weight"] - np.float32(config["lr"]) * gradient(arrays["weight"], x, y)
    arrays["counter"] = arrays["counter"] + 1
    metrics = {"num-examples": len(x), "train_loss": before, "pair": [1.0, before]}
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()}),
            "metrics": MetricRecord(metrics),
        }
    )
    if context.node_config["partition-id"] == config["faulty-partition"]:
        misbehave(str(config["fault"]), content)
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    x, y = part(context.node_config["partition-id"], context.node_config["num-partitions"])
    weight = message.content["arrays"]["weight"].numpy()
    metrics = MetricRecord({"num-examples": len(x), "eval_loss": loss(weight, x, y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def wait_at(gate: Path) -> None:
    """Until somebody opens it."""
    print("at the gate", gate, flush=True)  # noqa: T201 - tests wait for it in the log
    while not gate.exists():
        time.sleep(0.02)


def misbehave(fault: str, content: RecordDict) -> None:
    """Spoil the reply, or the process."""
    arrays, metrics = content["arrays"], content["metrics"]
    if fault == "raise":
        raise ValueError("patient 17 is in this message")
    if fault == "exit":
        raise SystemExit(3)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(3600)
    if fault == "nan":
        arrays["weight"] = Array(np.full(5, np.nan, np.float32))
    if fault == "float64":
        arrays["weight"] = Array(np.zeros(5))
    if fault == "extra-array":
        arrays["other"] = Array(np.zeros(5, np.float32))
    if fault == "no-examples":
        del metrics["num-examples"]
    if fault == "half-example":
        metrics["num-examples"] = 1.5
    if fault == "too-many-examples":
        metrics["num-examples"] = 2**30
    if fault == "two-metrics":
        content["more"] = MetricRecord({"a": 1.0})
    if fault == "other-metrics":
        metrics["another"] = 1.0
    if fault == "no-arrays":
        del content["arrays"]
