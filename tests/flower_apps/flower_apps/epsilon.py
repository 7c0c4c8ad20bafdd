"""Clients with a privacy accountant of their own (as with Opacus) report an epsilon, of which the largest counts."""

import math

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcore.flower.strategies.metrics import grid_counts, maximum
from flower_apps.task import NODES, SIZES, initial, partition_of, record_of, reply, report, trained

client = ClientApp()
counting_client = ClientApp()
server = ServerApp()
counting_server = ServerApp()

GRID = (0.5, 1.0, 1.5, 2.0, 3.0, math.inf)


def spent(site: int) -> float:
    """The fewer examples, the more."""
    return 10.0 / SIZES[site]


@client.train()
def train(message: Message, context: Context) -> Message:
    arrays, metrics = trained(message, context)
    return reply(message, {**metrics, "epsilon": spent(partition_of(context))}, arrays)


@counting_client.train()
def train_counting(message: Message, context: Context) -> Message:
    arrays, metrics = trained(message, context)
    return reply(message, {**metrics, "epsilon": grid_counts(spent(partition_of(context)), GRID)}, arrays)


def largest(contents: list[RecordDict], weight_key: str) -> MetricRecord:
    """A mean would be too good."""
    return MetricRecord({"epsilon": max(content["metrics"]["epsilon"] for content in contents)})


@server.main()
def main(grid: Grid, context: Context) -> None:
    run(grid, FedAvg(train_metrics_aggr_fn=largest, **OPTIONS))


@counting_server.main()
def main_counting(grid: Grid, context: Context) -> None:
    run(grid, FedAvg(train_metrics_aggr_fn=maximum("epsilon", GRID), **OPTIONS))


OPTIONS = {"fraction_evaluate": 0.0, "min_train_nodes": NODES, "min_available_nodes": NODES}


def run(grid: Grid, strategy: FedAvg) -> None:
    result = strategy.start(grid=grid, initial_arrays=record_of(initial()), num_rounds=1)
    report(arrays=result.arrays, epsilon=result.train_metrics_clientapp[1]["epsilon"])
