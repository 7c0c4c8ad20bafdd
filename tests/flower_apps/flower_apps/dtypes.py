"""Models whose tensors are not all float32: counters, flags and small integers, and parameters in float16."""

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flower_apps.quickstart import evaluate
from flower_apps.task import NODES, SIZES, arrays_of, fit, initial, partition_of, record_of, reply, report

# One a line: Flower looks for these names in the text of the module, and finds none in an assignment of several.
counting = ClientApp()
counting_unequally = ClientApp()
half = ClientApp()
integers = ServerApp()
halves = ServerApp()

Arrays = dict[str, NDArray]


def counters() -> Arrays:
    """Optimizer steps (without an axis), which rows were seen, a table of small numbers, and negative ones."""
    return {
        "steps": np.array(3, np.int64),
        "seen": np.array([True, False, False]),
        "table": np.array([250, 3, 0], np.uint8),
        "offset": np.array([-7, 0], np.int32),
    }


@counting.train()
def count_alike(message: Message, context: Context) -> Message:
    """Every site counts the same, whatever its size."""
    arrays = arrays_of(message.content["arrays"])
    changed = {
        "steps": arrays["steps"] + 4,
        "seen": np.array([True, True, False]),
        "table": arrays["table"] + np.array([1, 2, 0], np.uint8),
        "offset": arrays["offset"] - 2,
    }
    return _trained(message, context, arrays, changed)


@counting_unequally.train()
def count_own(message: Message, context: Context) -> Message:
    """Sites count what they have: the mean is no whole number."""
    arrays, site = arrays_of(message.content["arrays"]), partition_of(context)
    seen = np.array([True, site > 1, site == 1])
    changed = {"steps": arrays["steps"] + 4 * site, "seen": seen, "table": arrays["table"], "offset": arrays["offset"]}
    return _trained(message, context, arrays, changed)


@half.train()
def train_half(message: Message, context: Context) -> Message:
    """Trains in float32, and keeps float16."""
    arrays, site = arrays_of(message.content["arrays"]), partition_of(context)
    wide = {name: value.astype(np.float32) for name, value in arrays.items()}
    wide, loss = fit(wide, site, float(context.run_config["lr"]))
    narrow = {name: value.astype(np.float16) for name, value in wide.items()}
    return reply(message, {"num-examples": SIZES[site], "train_loss": loss}, narrow)


for app in (counting, counting_unequally, half):
    app.evaluate()(evaluate)


@integers.main()
def main(grid: Grid, context: Context) -> None:
    _run(grid, context, initial() | counters())


@halves.main()
def main_halves(grid: Grid, context: Context) -> None:
    _run(grid, context, {name: value.astype(np.float16) for name, value in initial().items()})


def _trained(message: Message, context: Context, arrays: Arrays, changed: Arrays) -> Message:
    site = partition_of(context)
    stepped, loss = fit(arrays, site, float(context.run_config["lr"]))
    return reply(message, {"num-examples": SIZES[site], "train_loss": loss}, stepped | changed)


def _run(grid: Grid, context: Context, model: Arrays) -> None:
    strategy = FedAvg(min_train_nodes=NODES, min_evaluate_nodes=NODES, min_available_nodes=NODES)
    rounds = int(context.run_config["num-server-rounds"])
    result = strategy.start(grid=grid, initial_arrays=record_of(model), num_rounds=rounds)
    kinds = {name: str(value.dtype) for name, value in arrays_of(result.arrays).items()}
    report(arrays=result.arrays, kinds=list(kinds.values()), evaluated=result.evaluate_metrics_clientapp)
