"""Answers every message with what it got, or raises."""

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("echo")
def echo(message: Message, context: Context) -> Message:
    """What came, and who it was for."""
    partition = int(context.node_config["partition-id"])
    if partition == context.run_config["raises"]:
        raise ValueError("no data here")
    metadata = message.metadata
    message.content["asked"] = ConfigRecord(
        {
            "type": metadata.message_type,
            "id": metadata.message_id,
            "group": metadata.group_id,
            "ttl": metadata.ttl,
            "node": metadata.dst_node_id,
            "partition": partition,
        }
    )
    return Message(message.content, reply_to=message)
