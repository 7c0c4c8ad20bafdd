"""The Grid of plain mode, in which all is as under Flower: every record of every message, reply and error."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.app.metadata import Metadata

from fedcore.errors import AppError, PeerError
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.grid.plain_request import Content, Outgoing, PlainRequest
from fedcore.flower.records import SERVER_NODE, error_from, load_records, message_from, round_of
from fedcore.run.plain import UNKNOWN, PlainReply
from fedcore.state import ModelState
from fedcore.wire.tasks import MessageHead


@dataclass(eq=False)
class PlainGrid(ExchangeGrid):
    """Messages to different nodes are one exchange, whatever they hold; a further one to the same node is the next."""

    _last_sent: ArrayRecord | None = field(default=None, init=False)
    _exchanges: int = field(default=0, init=False)

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        """The replies, errors among them, in the order of the messages."""
        replies: dict[str, Message] = {}
        for wave in _waves(messages):
            replies |= {reply.metadata.reply_to_message_id: reply for reply in self._exchange(wave, timeout)}
        ids = [message.metadata.message_id for message in messages]
        return [replies[name] for name in ids if name in replies]

    def final_state(self) -> ModelState | None:
        """The model that the strategy ended with, or the last one that was sent; None if that is no model."""
        record = self.final_arrays() or self._last_sent
        try:
            return self.model_in(self.conform(record)) if record is not None else None
        except AppError:
            return None

    def _exchange(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        self._exchanges += 1
        for message in messages:
            self._note_model(message.content)
        by_node = {message.metadata.dst_node_id: message for message in messages}
        replies = self.backend.ask(self._request(messages, timeout))[::-1]
        while replies:
            reply = replies.pop()  # one that is in memory need not be there twice
            yield self._reply(reply, by_node[reply.node])

    def _note_model(self, content: RecordDict) -> None:
        records = list(content.array_records.values())
        if len(records) != 1:
            return
        self._last_sent = records[0]
        if self._layout is None:
            try:
                self._layout = self.conform(records[0]).layout
            except AppError:
                self._last_sent = None  # trees, or bytes of the app's own: no model that fedcore knows

    def _request(self, messages: Sequence[Message], timeout: float | None) -> PlainRequest:
        contents: list[RecordDict] = []
        outgoing = []
        for message in messages:
            index = next((i for i, existing in enumerate(contents) if _equal(existing, message.content)), len(contents))
            if index == len(contents):
                contents.append(message.content)
            metadata = message.metadata
            head = MessageHead(
                message_id=metadata.message_id,
                group_id=metadata.group_id,
                created_at=metadata.created_at,
                ttl=metadata.ttl,
            )
            one = Outgoing(node=metadata.dst_node_id, message_type=metadata.message_type, head=head, content=index)
            outgoing.append(one)
        return PlainRequest(
            server_round=round_of(messages[0]) or self._exchanges,
            messages=tuple(outgoing),
            contents=tuple(map(Content, contents)),
            weight_key=self.weight_key,
            timeout=timeout,
            model=self._model_in(contents),
            layout=self._layout,
        )

    def _model_in(self, contents: Sequence[RecordDict]) -> str | None:
        """SHA-256 of the one model in a message that all get, named as it would be in secure mode."""
        records = list(contents[0].array_records.values())
        if len(contents) > 1 or len(records) != 1 or self._layout is None:
            return None
        try:
            return self.conform(records[0]).sha256()
        except AppError:
            return None  # trees, or bytes of the app's own

    def _reply(self, reply: PlainReply, message: Message) -> Message:
        request = message.metadata
        now = time.time()
        metadata = Metadata(
            run_id=self.run_id,
            message_id=str(uuid.uuid4()),
            src_node_id=reply.node,
            dst_node_id=SERVER_NODE,
            reply_to_message_id=request.message_id,
            group_id=request.group_id,
            created_at=now,
            ttl=request.created_at + request.ttl - now,
            message_type=request.message_type,
        )
        if reply.error is None and reply.content is not None:
            try:
                return message_from(load_records(reply.content), metadata)
            except PeerError as unsound:
                return error_from(Error(UNKNOWN, str(unsound)), metadata)
        error = reply.error
        return error_from(Error(error.code, error.reason) if error else Error(UNKNOWN, "no reply"), metadata)


def _waves(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The messages in turns, with no node twice in one of them."""
    remaining = list(messages)
    while remaining:
        wave: dict[int, Message] = {}
        later = []
        for message in remaining:
            if message.metadata.dst_node_id in wave:
                later.append(message)
            else:
                wave[message.metadata.dst_node_id] = message
        yield list(wave.values())
        remaining = later


def _equal(one: RecordDict, two: RecordDict) -> bool:
    """Whether two contents are the same to the last bit; broadcast ones share their records."""
    if one is two:
        return True
    return list(one) == list(two) and all(_equal_records(a, two[key]) for key, a in one.items())


def _equal_records(one: object, two: object) -> bool:
    if one is two:
        return True
    if isinstance(one, ArrayRecord) and isinstance(two, ArrayRecord):
        return list(one) == list(two) and bool(one == two)
    return type(one) is type(two) and repr(one) == repr(two)  # 1, 1.0 and True are equal otherwise
