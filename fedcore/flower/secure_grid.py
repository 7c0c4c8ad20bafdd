"""The Grid of secure mode: all clients get the same message, and one reply holds the cohort's mean.

It holds the weighted mean and the summed examples. A strategy that uses nothing but the mean cannot tell the
difference: one reply of weight 1 averages to itself.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from flwr.app import Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy

from fedcore.errors import AppError, BudgetSpent
from fedcore.exchange import ExchangeReply, ExchangeRequest
from fedcore.flower.grid import SERVER_NODE, ExchangeGrid
from fedcore.flower.records import arrays_from_state, config_to_json, message_from

NEEDS_SINGLE_UPDATES: dict[type[Strategy], str] = {
    strategies.Bulyan: "it selects among single updates",
    strategies.MultiKrum: "it selects among single updates",
    strategies.FedMedian: "a median needs every single update",
    strategies.FedTrimmedAvg: "a trimmed mean needs every single update",
    strategies.QFedAvg: "it weights every update by its own loss",
    strategies.FedXgbBagging: "trees are collected one by one, not averaged",
    strategies.FedXgbCyclic: "a model goes from client to client",
    strategies.DifferentialPrivacyServerSideFixedClipping: "it clips every single update at the server",
    strategies.DifferentialPrivacyServerSideAdaptiveClipping: "it clips every single update at the server",
    strategies.DifferentialPrivacyClientSideFixedClipping: "it counts the single replies",
    strategies.DifferentialPrivacyClientSideAdaptiveClipping: "it reads the norm bit of every single reply",
}


def check_strategy(strategy: Strategy) -> None:
    """Refuse a strategy that needs single updates while the server sees only sums; raises AppError."""
    for kind, reason in NEEDS_SINGLE_UPDATES.items():
        if isinstance(strategy, kind):
            raise AppError(
                f"{type(strategy).__name__} cannot run with secure aggregation: {reason}. Choose a strategy that uses "
                'only the mean (FedAvg, FedProx, FedAvgM, FedAdam, ...), or set aggregation = "plain", which lets the '
                "server read every update."
            )


@dataclass(eq=False)
class SecureGrid(ExchangeGrid):
    """Messages to a cohort become one exchange, and its sum the reply to the first of them."""

    _exchanges: int = field(default=0, init=False)

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        """One exchange; raises AppError where the messages differ."""
        if not messages:
            return []
        if not all(same_content(messages[0], message) for message in messages[1:]):
            raise AppError(
                "the strategy sends different messages to different clients; with secure aggregation all clients of "
                'a round must get the same model and configuration (or set aggregation = "plain")'
            )
        return self._exchange(messages, timeout)

    def _exchange(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        self._exchanges += 1
        request = self._request(messages, timeout)
        try:
            replies = self.backend.exchange(request)
        except BudgetSpent:
            # The exchange that is refused carries the newest model of the strategy, whatever it made of the last sum.
            self._last_state = request.model or self._last_state
            raise
        by_node = {message.metadata.dst_node_id: message for message in messages}
        return [self._reply(reply, by_node.get(reply.node, messages[0]), request) for reply in replies]

    def _request(self, messages: Sequence[Message], timeout: float | None) -> ExchangeRequest:
        first = messages[0]
        content = first.content
        if len(content.array_records) > 1 or content.metric_records:
            raise AppError("a message may hold one ArrayRecord at most, ConfigRecords, and nothing else")
        state = None
        arrays_key = next(iter(content.array_records), "")
        if arrays_key:
            state = self.conform(content.array_records[arrays_key])
            self._layout = state.layout
        configs = {key: config_to_json(record) for key, record in content.config_records.items()}
        rounds = [c["server-round"] for c in configs.values() if isinstance(c.get("server-round"), int)]
        return ExchangeRequest(
            message_type=first.metadata.message_type,
            nodes=tuple(message.metadata.dst_node_id for message in messages),
            server_round=rounds[0] if rounds else self._exchanges,
            model=state,
            arrays_key=arrays_key,
            configs=configs,
            weight_key=self.weight_key,
            timeout=timeout,
        )

    def _reply(self, reply: ExchangeReply, message: Message, request: ExchangeRequest) -> Message:
        metrics = MetricRecord({self.weight_key: reply.examples, **reply.metrics})
        content = RecordDict({"metrics": metrics})
        if (state := reply.model()) is not None:
            self._last_state = state
            content[request.arrays_key or "arrays"] = arrays_from_state(state)
        metadata = Metadata(
            run_id=self.run_id,
            message_id=str(uuid.uuid4()),
            src_node_id=reply.node or message.metadata.dst_node_id,
            dst_node_id=SERVER_NODE,
            reply_to_message_id=message.metadata.message_id,
            group_id=message.metadata.group_id,
            created_at=time.time(),
            ttl=message.metadata.ttl,
            message_type=request.message_type,
        )
        return message_from(content, metadata)


def same_content(a: Message, b: Message) -> bool:
    """Whether two messages ask the same of their nodes."""
    if a.metadata.message_type != b.metadata.message_type:
        return False
    return a.content is b.content or bool(a.content == b.content)
