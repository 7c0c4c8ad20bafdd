"""Flower's own idiom: push messages, pull until all replies are there, and look at each of them."""

import json
import sys
import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


def content_for(number: int) -> RecordDict:
    """Records of every kind, in which each message differs from the others."""
    tree = Array(dtype="", shape=(), stype="own", data=bytes([number]) * 70_000)
    arrays = ArrayRecord({"w": Array(np.full((2, 3), number / 3)), "half": Array(np.float16([number]))})
    return RecordDict(
        {
            "model": arrays,
            "trees": ArrayRecord({"tree": tree, "f": Array(np.asfortranarray(np.eye(3)))}),
            "numbers": MetricRecord({"n": number, "x": float("nan"), "many": [1, 2], "floats": [0.5, number / 7]}),
            "settings": ConfigRecord({"bytes": b"\x00\xff", "flags": [True, False], "texts": ["a", "ü"], "empty": []}),
        }
    )


def told(content: RecordDict) -> str:
    """All that is in the records, to the last bit."""
    found = {}
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            found[key] = [(name, a.dtype, list(a.shape), a.stype, a.data.hex()) for name, a in record.items()]
        else:
            found[key] = [(name, repr(value)) for name, value in record.items()]
    return json.dumps([(key, type(content[key]).__name__, found[key]) for key in content])


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask, check, and print what came."""
    while len(nodes := sorted(grid.get_node_ids())) < context.run_config["min-nodes"]:
        time.sleep(0.1)
    messages = [
        Message(content_for(10 * turn + place), node, "query.echo", group_id=f"turn {turn}", ttl=600.0 + place)
        for turn in range(int(context.run_config["messages"]))
        for place, node in enumerate(nodes)
    ]
    sent = dict(zip(grid.push_messages(messages), messages, strict=True))
    waiting, replies = set(sent), []
    while waiting:
        replies += (came := list(grid.pull_messages(waiting)))
        waiting -= {reply.metadata.reply_to_message_id for reply in came}
        time.sleep(0.01)
    echoed = []
    for reply in replies:
        message = sent[reply.metadata.reply_to_message_id]
        if reply.has_error():
            sys.stdout.write(f"node {reply.metadata.src_node_id}: error {reply.error.code}, {reply.error.reason}\n")
            continue
        asked = reply.content["asked"]
        del reply.content["asked"]
        assert told(reply.content) == told(message.content)
        metadata = message.metadata
        assert asked["type"] == metadata.message_type == reply.metadata.message_type
        assert asked["id"] == metadata.message_id
        assert asked["group"] == metadata.group_id == reply.metadata.group_id
        assert asked["ttl"] == metadata.ttl
        assert asked["node"] == metadata.dst_node_id == reply.metadata.src_node_id
        echoed.append(asked["node"])
    sys.stdout.write(f"echoed {len(echoed)} of {len(messages)}\n")
