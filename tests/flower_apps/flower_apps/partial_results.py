"""Queries whose loop hands the replies to a function that adds numbers up, as Flower's quickstarts have them."""

import random
import time
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from flower_apps.task import NODES, data, partition_of, report

client = ClientApp()
histograms = ServerApp()
statistics = ServerApp()
maxima = ServerApp()

COLUMNS = ("length", "width")
EDGES = np.array([-10.0, -2.0, -1.0, 0.0, 1.0, 2.0, 10.0])


@client.query()
def count(message: Message, context: Context) -> Message:
    """A histogram of each column, and what a mean of it needs."""
    found: dict[str, Any] = {}
    for column, name in enumerate(COLUMNS):
        values = data(partition_of(context))[0][:, column]
        found[name] = np.histogram(values, bins=EDGES)[0].tolist()
        found[f"{name}_avg"] = float(values.mean() * len(values))
        found[f"{name}_count"] = len(values)
    return Message(RecordDict({"query_results": MetricRecord(found)}), reply_to=message)


@client.query("moments")
def moments(message: Message, context: Context) -> Message:
    """Sums, and sums of squares."""
    found: dict[str, Any] = {}
    for name in message.content["config"]["features"]:
        values = data(partition_of(context))[0][:, COLUMNS.index(name)].astype(np.float64)
        found |= {f"{name}_sum": sum(values), f"{name}_count": len(values), f"{name}_sqd": sum(values**2)}
    return Message(RecordDict({"query_results": MetricRecord(found)}), reply_to=message)


def ask(grid: Grid, kind: str, content: RecordDict) -> list[Message]:
    """The replies of all nodes, a sample of the whole."""
    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    chosen = random.sample(nodes, len(nodes))
    replies = grid.send_and_receive([Message(content, node, kind) for node in chosen])
    log(INFO, "Received %s/%s results", len(list(replies)), len(chosen))
    return list(replies)


def add_histograms(messages: list[Message]) -> dict[str, Any]:
    """The histograms of all, which have as many rows as the clients report."""
    total: dict[str, Any] = {}
    rows = 0
    for reply in messages:
        if reply.has_error():
            continue
        for name, value in reply.content["query_results"].items():
            if name in COLUMNS:
                if name in total:
                    total[name] += np.array(value)
                else:
                    total[name] = np.array(value)
            if "_count" in name:
                rows += value
    assert rows == sum([sum(value) for value in total.values()])
    return total


def means_and_deviations(messages: list[Message], features: list[str]) -> dict[str, Any]:
    """Of each feature, from the sums of all."""

    def start() -> dict[str, dict[str, float]]:
        return {name: {"sum": 0.0, "count": 0, "sqd": 0.0} for name in features}

    def finish(one: dict[str, float]) -> list[float]:
        if one["count"] <= 1:
            raise ValueError("too few rows")
        mean = one["sum"] / one["count"]
        variance = (one["sqd"] - one["count"] * mean**2) / (one["count"] - 1)
        if variance < 0:
            variance = 0.0
        return [mean, np.sqrt(variance)]

    sums, valid = start(), 0
    for message in messages:
        if message.has_error():
            continue
        found = message.content["query_results"]
        valid += 1
        for name in features:
            for part in ("sum", "count", "sqd"):
                sums[name][part] += found[f"{name}_{part}"]
    if valid == 0:
        raise ValueError("no message")
    results: dict[str, Any] = {}
    for name in features:
        try:
            results[name] = finish(sums[name])
        except ValueError as error:
            log(INFO, "Warning: %s", error)
            results[name] = None
    return results


def largest(messages: list[Message]) -> dict[str, float]:
    """What no sum tells."""
    return {name: max([one.content["query_results"][f"{name}_count"] for one in messages]) for name in COLUMNS}


@histograms.main()
def main(grid: Grid, context: Context) -> None:
    report(**add_histograms(ask(grid, "query", RecordDict())))


@statistics.main()
def main_statistics(grid: Grid, context: Context) -> None:
    features = list(COLUMNS)
    replies = ask(grid, "query.moments", RecordDict({"config": ConfigRecord({"features": features})}))
    report(**means_and_deviations(replies, features))


@maxima.main()
def main_maxima(grid: Grid, context: Context) -> None:
    report(**largest(ask(grid, "query", RecordDict())))
