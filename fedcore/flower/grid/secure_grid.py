"""The Grid of secure mode: all clients get the same message, and one reply holds the cohort's mean.

It holds the weighted mean and the summed examples. A strategy that uses nothing but the mean cannot tell the
difference: one reply of weight 1 averages to itself.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.common import MessageTypeLegacy

from fedcore.errors import AppError, BudgetSpent
from fedcore.flower.array_view import ArrayView
from fedcore.flower.grid.aggregation_guard import callers, check_callers, check_mean_only, check_metrics
from fedcore.flower.grid.grid import ExchangeGrid
from fedcore.flower.grid.queries import records_of
from fedcore.flower.grid.query_sums import SumReader, may_only_add
from fedcore.flower.grid.robust import Groups
from fedcore.flower.records import SERVER_NODE, arrays_from_state, config_to_json, message_from, round_of
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.state import ModelState
from fedcore.wire.tasks import is_query

_LEGACY_QUESTION = (
    "the app sends {!r} to a single client; with secure aggregation no single client's answer is ever seen. Give the "
    'strategy initial_parameters (flwr.common.ndarrays_to_parameters), or set aggregation = "plain"'
)

_DIFFERENT_MESSAGES = (
    "the strategy sends different messages to different clients; with secure aggregation all clients of a round must "
    'get the same model and configuration (or set aggregation = "plain")'
)

OnRefusal: TypeAlias = Callable[[AppError], None]


def refuse(error: AppError) -> None:
    """End the run."""
    raise error


@dataclass(eq=False)
class SecureGrid(ExchangeGrid):
    """Messages to a cohort become one exchange, and its sum the reply to the first of them.

    on_refusal: gets the AppError for code that wants more than the mean, before any exchange.
    groups: those into which trainings are cut, each with a reply of its own; None if they are not.
    write_first: writes the first model, which goes to so many nodes, to the file that is sent, and gives it as it lies
        there; what the strategy has of it lies there too from then on.
    """

    on_refusal: OnRefusal = field(default=refuse, kw_only=True)
    groups: Groups | None = field(default=None, kw_only=True)
    write_first: Callable[[ModelState, int], ModelState] = field(default=lambda model, nodes: model, kw_only=True)
    _exchanges: int = field(default=0, init=False)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the clients that are connected now; raises AppError for a strategy that wants single replies."""
        with self._refusing():
            check_callers(self.groups)
        return super().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As in every Grid, but there is one reply, so one id to wait for: that of the message which it answers."""
        return [name for name in super().push_messages(messages) if name in self._pushed]

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        """One exchange; raises AppError if the messages differ, or single replies are wanted."""
        if not messages:
            return []
        if (message_type := messages[0].metadata.message_type) in (
            MessageTypeLegacy.GET_PARAMETERS,
            MessageTypeLegacy.GET_PROPERTIES,
        ):
            raise AppError(_LEGACY_QUESTION.format(message_type))
        reader = None
        try:
            check_mean_only(messages[0].metadata.message_type, self.groups)
        except AppError as error:
            if not (is_query(message_type) and error.check == "undeclared-loop" and may_only_add(list(callers()))):
                self.on_refusal(error)
            else:
                reader = SumReader(error)
        if not all(same_content(messages[0], message) for message in messages[1:]):
            self.on_refusal(AppError(_DIFFERENT_MESSAGES, check="different-messages"))
        replies = self._exchange(messages, timeout)
        return replies if reader is None or not replies else reader.replies(replies[0], messages)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except AppError as error:
            self.on_refusal(error)

    def _exchange(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        self._exchanges += 1
        request = self._request(messages, timeout)
        try:
            replies = self.backend.exchange(request)
        except BudgetSpent:
            # The exchange that is refused carries the newest model of the strategy, whatever it made of the last sum.
            self._last_state = request.model or self._last_state
            raise
        if replies:
            with self._refusing():
                check_metrics(request.message_type, replies[0].metrics, self.groups)
        # Which message a reply answers means nothing, but each answers another one.
        return [self._reply(reply, message, request) for reply, message in zip(replies, messages, strict=False)]

    def _request(self, messages: Sequence[Message], timeout: float | None) -> ExchangeRequest:
        first = messages[0]
        content = first.content
        if len(content.array_records) > 1 or content.metric_records:
            raise AppError("a message may hold one ArrayRecord at most, ConfigRecords, and nothing else")
        state = None
        arrays_key = next(iter(content.array_records), "")
        if arrays_key:
            state = self._state(content.array_records[arrays_key], len(messages))
            self._layout = state.layout
        configs = {key: config_to_json(record) for key, record in content.config_records.items()}
        rounds = [c["server-round"] for c in configs.values() if isinstance(c.get("server-round"), int)]
        return ExchangeRequest(
            message_type=first.metadata.message_type,
            nodes=tuple(message.metadata.dst_node_id for message in messages),
            server_round=rounds[0] if rounds else round_of(first) or self._exchanges,
            model=state,
            arrays_key=arrays_key,
            configs=configs,
            weight_key=self.weight_key,
            timeout=timeout,
            ahead=self.expected_nodes,
        )

    def _state(self, arrays: ArrayRecord, nodes: int) -> ModelState:
        state = self.conform(arrays)
        if self._layout is None:
            state = self.write_first(state, nodes)
            for name, array in arrays.items():
                if isinstance(array, ArrayView):
                    array.rest_on(state[name])
        return state

    def _reply(self, reply: ExchangeReply, message: Message, request: ExchangeRequest) -> Message:
        if is_query(request.message_type):
            content = records_of(reply.metrics)
        else:
            content = RecordDict({"metrics": MetricRecord({self.weight_key: reply.examples, **reply.metrics})})
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
