"""Running an unmodified Flower ServerApp: its Grid turns every `send_and_receive` into one exchange.

In secure mode an exchange returns one reply that holds the cohort's weighted mean and the summed examples. A strategy
that uses nothing but the mean cannot tell the difference: one reply of weight 1 averages to itself.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedcore.errors import AppError, BudgetSpent, UsageError
from fedcore.exchange import ExchangeReply, ExchangeRequest
from fedcore.flower.app import FlowerApp
from fedcore.flower.loading import load_object
from fedcore.flower.records import (
    arrays_from_state,
    cast_to_layout,
    config_to_json,
    message_from,
    run_id_of,
    state_from_arrays,
)
from fedcore.state import Layout, ModelState
from fedcore.wire import Scalar

Aggregation = Literal["secure", "plain"]
SERVER_NODE = 0
DEFAULT_WEIGHT_KEY = "num-examples"

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


class ExchangeBackend(Protocol):
    """What carries out exchanges: the server's coordinator, or the simulator."""

    def nodes(self) -> list[int]:
        """Ids of the clients that are connected now."""
        ...

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Carry out one exchange; blocks. Raises RoundFailed where no attempt succeeds, BudgetSpent to end the run.

        No reply at all where the clients were not asked.
        """
        ...


@dataclass(slots=True)
class ServerAppOutcome:
    """What a ServerApp ended with: the final global model, None if it never had one.

    stopped: why it was ended before its own end; empty where it was not.
    """

    state: ModelState | None = None
    stopped: str = ""


def run_server_app(
    app: FlowerApp,
    *,
    backend: ExchangeBackend,
    run: str,
    run_config: dict[str, Scalar],
    aggregation: Aggregation,
) -> ServerAppOutcome:
    """Run the app's ServerApp to its end in this process; errors of the user's code are raised as they are."""
    run_id = run_id_of(run)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SERVER_NODE, 0
    server_app = load_object(app.folder, app.serverapp, ServerApp)
    grid = ExchangeGrid(backend, run_id=run_id, aggregation=aggregation)
    context = Context(
        run_id=run_id,
        node_id=SERVER_NODE,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config),
    )
    try:
        with _observed_strategies():
            server_app(grid, context)
    except BudgetSpent as error:
        return ServerAppOutcome(state=grid.final_state(), stopped=str(error))
    return ServerAppOutcome(state=grid.final_state())


def check_strategy(strategy: Strategy, aggregation: Aggregation) -> None:
    """Refuse a strategy that needs single updates while the server sees only sums; raises AppError."""
    if aggregation == "plain":
        return
    for kind, reason in NEEDS_SINGLE_UPDATES.items():
        if isinstance(strategy, kind):
            raise AppError(
                f"{type(strategy).__name__} cannot run with secure aggregation: {reason}. Choose a strategy that uses "
                'only the mean (FedAvg, FedProx, FedAvgM, FedAdam, ...), or set aggregation = "plain", which lets the '
                "server read every update."
            )


@contextmanager
def _observed_strategies() -> Iterator[None]:
    """See which strategy drives a grid, and with what result; Flower has no hook for either."""
    original = Strategy.start

    @functools.wraps(original)
    def start(self: Strategy, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        if isinstance(grid, ExchangeGrid):
            check_strategy(self, grid.aggregation)
            grid.weight_key = getattr(self, "weighted_by_key", DEFAULT_WEIGHT_KEY)
        result = original(self, grid, *args, **kwargs)
        if isinstance(grid, ExchangeGrid):
            grid.result = result
        return result

    Strategy.start = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        Strategy.start = original  # type: ignore[method-assign]


@dataclass(eq=False)
class ExchangeGrid(Grid):
    """Flower's Grid over exchanges. One call of `send_and_receive` is one exchange of the whole cohort."""

    backend: ExchangeBackend
    run_id: int = field(kw_only=True)
    aggregation: Aggregation = field(kw_only=True)
    weight_key: str = field(default=DEFAULT_WEIGHT_KEY, init=False)
    result: Result | None = field(default=None, init=False)
    _layout: Layout | None = field(default=None, init=False)
    _last_state: ModelState | None = field(default=None, init=False)
    _exchanges: int = field(default=0, init=False)
    _pushed: dict[str, Message] = field(default_factory=dict, init=False)

    def set_run(self, run: Run) -> None:
        raise UsageError("the run of this grid is fixed")

    @property
    def run(self) -> Run:
        return Run.create_empty(self.run_id)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return self.backend.nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Carry out the exchange at once; `pull_messages` then hands out its replies."""
        messages = list(messages)
        replies = list(self.send_and_receive(messages))
        ids = [uuid.uuid4().hex for _ in messages]
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        for index, (name, message) in enumerate(zip(ids, messages, strict=True)):
            reply = by_node.get(message.metadata.dst_node_id)
            if reply is None and self.aggregation == "secure" and index == 0 and replies:
                reply = replies[0]  # the sum has no node of its own: it answers the first message
            if reply is not None:
                self._pushed[name] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._pushed.pop(name) for name in message_ids if name in self._pushed]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """One exchange for each distinct content; raises AppError where secure mode would need several."""
        groups = _group_by_content(list(messages))
        if len(groups) > 1 and self.aggregation == "secure":
            raise AppError(
                "the strategy sends different messages to different clients; with secure aggregation all clients of "
                'a round must get the same model and configuration (or set aggregation = "plain")'
            )
        return [reply for group in groups for reply in self._exchange(group, timeout)]

    def final_state(self) -> ModelState | None:
        """The model that the strategy ended with, or the last aggregate where no strategy was used."""
        if self.result is not None and self.result.arrays:
            return self._conform(self.result.arrays)
        return self._last_state

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
            state = self._conform(content.array_records[arrays_key])
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

    def _conform(self, record: ArrayRecord) -> ModelState:
        """The record in the dtypes of the first model of the run, which the strategy may have changed."""
        return cast_to_layout(state_from_arrays(record, like=self._layout), self._layout)

    def _reply(self, reply: ExchangeReply, message: Message, request: ExchangeRequest) -> Message:
        metrics = MetricRecord({self.weight_key: reply.examples, **reply.metrics})
        content = RecordDict({"metrics": metrics})
        if (state := reply.model()) is not None:
            self._last_state = state
            content[request.arrays_key or "arrays"] = arrays_from_state(state)
        metadata = Metadata(
            run_id=self.run_id,
            message_id=uuid.uuid4().hex,
            src_node_id=reply.node or message.metadata.dst_node_id,
            dst_node_id=SERVER_NODE,
            reply_to_message_id=message.metadata.message_id,
            group_id=message.metadata.group_id,
            created_at=time.time(),
            ttl=message.metadata.ttl,
            message_type=request.message_type,
        )
        return message_from(content, metadata)


def _group_by_content(messages: list[Message]) -> list[list[Message]]:
    """Messages with equal content, type and group together; order is kept."""
    groups: list[list[Message]] = []
    for message in messages:
        for group in groups:
            if _same_content(group[0], message):
                group.append(message)
                break
        else:
            groups.append([message])
    return groups


def _same_content(a: Message, b: Message) -> bool:
    if a.metadata.message_type != b.metadata.message_type:
        return False
    return a.content is b.content or bool(a.content == b.content)
