"""What goes wrong at one client, and a strategy that starts again and again from the same model."""

import time

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_apps.quickstart import evaluate
from flower_apps.task import NODES, initial, partition_of, record_of, reply, report, trained

# One a line: Flower looks for these names in the text of the module, and finds none in an assignment of several.
raising = ClientApp()
slow = ClientApp()
steady = ClientApp()
server = ServerApp()
hurried = ServerApp()
again = ServerApp()

EVERYBODY = {"min_train_nodes": NODES, "min_evaluate_nodes": NODES, "min_available_nodes": NODES}
SECONDS = 3.0


@raising.train()
def raise_at_one(message: Message, context: Context) -> Message:
    if partition_of(context) == 1:
        raise OSError("the disk of this site")
    return train(message, context)


@slow.train()
def wait_at_one(message: Message, context: Context) -> Message:
    if partition_of(context) == 1:
        time.sleep(2 * SECONDS)
    return train(message, context)


def train(message: Message, context: Context) -> Message:
    arrays, metrics = trained(message, context)
    return reply(message, metrics, arrays)


steady.train()(train)
for app in (raising, slow, steady):
    app.evaluate()(evaluate)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(**EVERYBODY)
    result = strategy.start(grid=grid, initial_arrays=record_of(initial()), num_rounds=2)
    report(arrays=result.arrays, evaluated=result.evaluate_metrics_clientapp)


@hurried.main()
def main_hurried(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0, **EVERYBODY)
    result = strategy.start(grid=grid, initial_arrays=record_of(initial()), num_rounds=1, timeout=SECONDS)
    report(arrays=result.arrays, trained=result.train_metrics_clientapp)


@again.main()
def main_again(grid: Grid, context: Context) -> None:
    found, config = {}, context.run_config
    for number in range(int(config["starts"])):
        model = initial()
        if config["seeds"]:  # each start from a model of its own
            model["weight"] = np.random.default_rng(number).normal(size=3).astype(np.float32)
        result = FedAvg(**EVERYBODY).start(grid=grid, initial_arrays=record_of(model), num_rounds=1)
        found[f"arrays-{number}"] = result.arrays
    report(**found)
