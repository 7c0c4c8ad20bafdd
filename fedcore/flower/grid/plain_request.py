"""The request for a plain exchange, from the Grid to the server or simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flwr.app import RecordDict

from fedcore.flower.records import save_records
from fedcore.state import Layout
from fedcore.wire.tasks import MessageHead


@dataclass(frozen=True, slots=True)
class Content:
    """All records of a message, which may be written to a record file."""

    records: RecordDict

    def save(self, path: Path, *, durable: bool = True) -> None:
        """Write the records; raises AppError if their values take too much, StorageFull."""
        save_records(path, self.records, durable=durable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to one node.

    content: its place among the contents of the request.
    """

    node: int
    message_type: str
    head: MessageHead
    content: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """Messages to different nodes, which get them at the same time; equal contents are there once.

    weight_key: the metric with the number of examples, for the record of the run.
    timeout: seconds after which no reply is wanted any more.
    model: SHA-256 of the model in all of them, as the safetensors file that secure mode would send; None if they
        hold none, or different ones.
    layout: of the models in them; None if they hold none that fedcore knows.
    """

    server_round: int
    messages: tuple[Outgoing, ...]
    contents: tuple[Content, ...]
    weight_key: str
    timeout: float | None = None
    model: str | None = None
    layout: Layout | None = None
