"""Asks once, and prints what it gets."""

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

import fedcore

app = ServerApp()


@app.main()
@fedcore.sum_only
def main(grid: Grid, context: Context) -> None:
    messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(messages):
        print({key: dict(record) for key, record in reply.content.metric_records.items()})  # noqa: T201
