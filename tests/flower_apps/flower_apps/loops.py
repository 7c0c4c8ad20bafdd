"""ServerApps with a loop of their own over the Grid; the clients are those of `quickstart`."""

import time
from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedcore import mean_only
from flower_apps.task import NODES, arrays_of, initial, record_of, report

server = ServerApp()
declared = ServerApp()
pushing = ServerApp()
pushing_declared = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    loop(grid, context, grid.send_and_receive)


@declared.main()
@mean_only
def main_declared(grid: Grid, context: Context) -> None:
    loop(grid, context, grid.send_and_receive)


@pushing.main()
def main_pushing(grid: Grid, context: Context) -> None:
    loop(grid, context, lambda messages: push_and_pull(grid, messages))


@pushing_declared.main()
@mean_only
def main_pushing_declared(grid: Grid, context: Context) -> None:
    loop(grid, context, lambda messages: push_and_pull(grid, messages))


def loop(grid: Grid, context: Context, ask) -> None:  # type: ignore[no-untyped-def]
    """Rounds of a weighted mean, by hand."""
    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    arrays = record_of(initial())
    for current in range(1, int(context.run_config["num-server-rounds"]) + 1):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": current})})
        replies = list(ask([Message(content, node, MessageType.TRAIN) for node in nodes]))
        arrays = weighted_mean(replies)
    report(arrays=arrays)


def push_and_pull(grid: Grid, messages: Iterable[Message]) -> list[Message]:
    """Until every message that was pushed has its reply."""
    waiting, replies = set(grid.push_messages(messages)), []
    while waiting:
        for message in grid.pull_messages(waiting):
            waiting.discard(message.metadata.reply_to_message_id)
            replies.append(message)
        time.sleep(0.05)
    return replies


def weighted_mean(replies: list[Message]) -> ArrayRecord:
    """Of the models, by their examples."""
    weights = [float(reply.content["metrics"]["num-examples"]) for reply in replies]
    models = [arrays_of(reply.content["arrays"]) for reply in replies]
    shares = np.array(weights) / sum(weights)
    return record_of(
        {
            name: sum(share * model[name] for share, model in zip(shares, models, strict=True)).astype(np.float32)
            for name in models[0]
        }
    )
