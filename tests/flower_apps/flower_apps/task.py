"""What the apps share: sites of unequal size, a linear model in float32, and how an app says what it found."""

import json
from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

NODES = 4
SIZES = (6, 10, 18, 30)
FEATURES = 3

Floats = NDArray[np.float32]


def initial() -> dict[str, Floats]:
    """The model that a run begins with."""
    return {"weight": np.array([0.5, -0.25, 0.0], np.float32), "bias": np.zeros(1, np.float32)}


def data(partition: int) -> tuple[Floats, Floats]:
    """Examples of one site, [n, 3] and [n]; the last site is unlike the others."""
    rng = np.random.default_rng(100 + partition)
    x = rng.normal(size=(SIZES[partition], FEATURES)).astype(np.float32)
    wanted = np.array([1.0, 2.0, -1.0], np.float32) * (-3 if partition == NODES - 1 else 1)
    return x, (x @ wanted + np.float32(0.5)).astype(np.float32)


def fit(arrays: Mapping[str, Floats], partition: int, lr: float) -> tuple[dict[str, Floats], float]:
    """The model after a step on all examples of a site, and the loss before it."""
    x, y = data(partition)
    off = x @ arrays["weight"] + arrays["bias"] - y
    rate = np.float32(2 * lr / len(x))
    stepped = {
        "weight": arrays["weight"] - rate * (x.T @ off),
        "bias": arrays["bias"] - rate * off.sum(keepdims=True),
    }
    return {name: value.astype(np.float32) for name, value in stepped.items()}, float(np.mean(off**2))


def loss(arrays: Mapping[str, Floats], partition: int) -> float:
    """Mean squared error on a site."""
    x, y = data(partition)
    return float(np.mean((x @ arrays["weight"] + arrays["bias"] - y) ** 2))


def partition_of(context: Context) -> int:
    """Which site this is."""
    return int(context.node_config["partition-id"])


def record_of(arrays: Mapping[str, NDArray]) -> ArrayRecord:
    """Arrays as Flower carries them."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def arrays_of(record: ArrayRecord) -> dict[str, NDArray]:
    """The inverse."""
    return {name: array.numpy() for name, array in record.items()}


def trained(message: Message, context: Context) -> tuple[dict[str, Floats], dict[str, float]]:
    """A step from the model of a message, with the metrics of a reply."""
    site = partition_of(context)
    arrays, before = fit(arrays_of(message.content["arrays"]), site, float(context.run_config["lr"]))
    return arrays, {"num-examples": SIZES[site], "train_loss": before}


def reply(message: Message, metrics: Mapping[str, object], arrays: Mapping[str, NDArray] | None = None) -> Message:
    """A reply with one MetricRecord, and one ArrayRecord if there are arrays."""
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if arrays is not None:
        content["arrays"] = record_of(arrays)
    return Message(content=content, reply_to=message)


def report(**found: object) -> None:
    """One line with what the app found; numbers, and lists and records of numbers."""
    print("RESULT " + json.dumps({name: _plain(value) for name, value in found.items()}), flush=True)  # noqa: T201


def _plain(value: object) -> object:
    if isinstance(value, ArrayRecord):
        return {name: array.astype(np.float64).ravel().tolist() for name, array in arrays_of(value).items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.astype(np.float64).ravel().tolist()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value if isinstance(value, str) else float(value)  # type: ignore[arg-type]
