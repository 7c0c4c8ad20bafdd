"""Base of the Grids of both modes: Flower's `Grid` over exchanges, with the ids that Flower's own grids give."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.server import History
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore.run import Run

from fedcore.errors import AppError, ConfigurationError, EncodingError, RunFailed, UsageError
from fedcore.flower.figures import NewFigures
from fedcore.flower.grid.aggregation_guard import DEFAULT_WEIGHT_KEY, reply_consumer
from fedcore.flower.grid.known_statistics import known_statistics
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.flower.grid.sampling import NodeWait, Polling, node_wait, samples
from fedcore.flower.grid.training_means import MeanRecorder
from fedcore.flower.records import cast_to_layout, state_from_arrays
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.state import Layout, ModelState
from fedcore.wire.events import FiguresFound
from fedcore.wire.tasks import is_query

Aggregation = Literal["secure", "plain"]


class ExchangeBackend(Protocol):
    """What carries out exchanges: the server's coordinator, or the simulator."""

    def nodes(self) -> list[int]:
        """Ids of the clients that are connected now."""
        ...

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """Say for whom the ServerApp waits: for `nodes` nodes by a setting, or 0 if that is not known."""
        ...

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Carry out one exchange; blocks. Raises RoundFailed if no attempt succeeds, BudgetSpent to end the run.

        No reply at all if the clients were not asked.
        """
        ...

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """Carry out one plain exchange; blocks. Raises RoundFailed if a quorum was set that no attempt meets.

        A node whose reply is not wanted any more after the request's timeout is left out.
        """
        ...

    def report_figures(self, figures: FiguresFound) -> None:
        """Hear what the strategy made of replies; before the next exchange, or the end of the run."""
        ...


@dataclass(eq=False)
class ExchangeGrid(Grid):
    """Flower's Grid over exchanges; a mode says in `deliver` how messages become replies.

    weight_key: the metric with the number of examples.
    result: of Flower's own loop that used this grid last, so far.
    most_nodes: that there can ever be, by what is known now.
    noised: whether sums have privacy noise, and none of the metrics of a training.
    compressed: whether updates lose a part, evenly.
    buffered: whether a training sums updates of several rounds.
    expected_nodes: message type -> how many nodes the strategy will ask, while it has its first message.
    awaits_start: whether a model lies ready that no strategy has started from yet.
    initial: that model, also later; None if the run begins with the app's own.
    extra_tensors: names of tensors that a strategy sends with its model, and that are no part of it.
    means: what takes the means of trainings; None if nobody compares them.
    first_arrays: what the strategy starts from, if it needs it no more once it sends another model.
    noise_shares: of how many of these clients the noise shares are in any sum of so many; 0 if sums are not masked.
    """

    backend: ExchangeBackend
    run_id: int = field(kw_only=True)
    most_nodes: Callable[[], int | None] = field(default=lambda: None, kw_only=True)
    polling: Polling = field(default_factory=Polling, kw_only=True)
    noised: bool = field(default=False, kw_only=True)
    compressed: bool = field(default=False, kw_only=True)
    buffered: bool = field(default=False, kw_only=True)
    means: MeanRecorder | None = field(default=None, kw_only=True)
    noise_shares: Callable[[int], int] = field(default=lambda n: 0, kw_only=True)
    weight_key: str = field(default=DEFAULT_WEIGHT_KEY, init=False)
    result: Result | History | None = field(default=None, init=False)
    expected_nodes: Mapping[str, int] = field(default_factory=dict, init=False)
    awaits_start: bool = field(default=False, init=False)
    initial: ModelState | None = field(default=None, init=False)
    extra_tensors: frozenset[str] = field(default=frozenset(), init=False)
    first_arrays: ArrayRecord | None = field(default=None, init=False)
    _present: int = field(default=0, init=False)
    _last_count: list[int] = field(default_factory=list, init=False)
    """Who was there when Flower's own code counted them, until it samples."""
    _looked_ahead: bool = field(default=False, init=False)
    _layout: Layout | None = field(default=None, init=False)
    _last_state: ModelState | None = field(default=None, init=False)
    _final: ArrayRecord | None = field(default=None, init=False)
    _replied: set[str] = field(default_factory=set, init=False)
    _failures: dict[str, str] = field(default_factory=dict, init=False)
    _figures: NewFigures = field(default_factory=NewFigures, init=False)
    _pushed: dict[str, Message] = field(default_factory=dict, init=False)

    @abstractmethod
    def deliver(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        """The replies to messages that have their ids; blocks for at most `timeout` seconds, if there is one."""

    def set_run(self, run: Run) -> None:
        """Refused: the run of this grid is fixed."""
        raise UsageError("the run of this grid is fixed")

    @property
    def run(self) -> Run:
        """Flower's description of the run, with nothing in it but the id."""
        return Run.create_empty(self.run_id)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message, as its constructor makes it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the clients that are connected now; raises ConfigurationError for a strategy that waits in vain."""
        waits = node_wait()
        if waits is not None:
            self.check_wait(waits)  # nobody need be there for that
        nodes = self.backend.nodes()
        earlier, self._last_count = self._last_count, nodes if waits is None else []
        if waits is not None and len(nodes) < waits.nodes <= len(earlier):
            # Flower's strategies count the nodes, and then wait for as many: for one that left in between, for ever.
            # So it is asked, as if it had left a moment later.
            nodes = earlier
        self._present = len(nodes)
        if waits is not None:
            self.check_wait(waits)
            self.note_wait(waits)
        return nodes

    def note_wait(self, waits: NodeWait) -> None:
        """Nodes were asked for: if they do not suffice for long, the backend says so."""
        if 0 < waits.nodes <= self._present:
            self.polling.over()
        elif self.polling.in_vain():
            self.backend.waits(waits.nodes, waits.setting, self._present)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver the messages at once; `pull_messages` then hands out the replies. Returns the messages' ids."""
        numbered = with_ids(messages)
        for reply in self._delivered(numbered, None):
            self._pushed[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in numbered]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to the messages with these ids, each of them once."""
        return [self._pushed.pop(name) for name in message_ids if name in self._pushed]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Deliver the messages and return the replies."""
        return self._delivered(with_ids(messages), timeout)

    def final_state(self) -> ModelState | None:
        """The model that the strategy ended with, or the last aggregate if no strategy was used."""
        final = self.final_arrays()
        if final is not None:
            return self.conform(final)
        return None if self._last_state is None else self.model_in(self._last_state)

    def model_in(self, state: ModelState) -> ModelState:
        """The model alone, without what a strategy sends with it."""
        return state.only(set(state) - self.extra_tensors) if self.extra_tensors else state

    def final_arrays(self) -> ArrayRecord | None:
        """What the strategy or the legacy Server ended with, if there was one."""
        return (self.result.arrays if isinstance(self.result, Result) else None) or self._final

    def _delivered(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        asking = reply_consumer()
        self.weight_key = asking.weight_key
        self.result = asking.result or self.result
        self.report_figures()
        self.polling.over()
        self._look_ahead()
        self._forget_first(messages)
        try:
            self._check_started(messages)
            replies = self.deliver(messages, timeout)
        except Exception as error:  # what a simulated client raised, too
            for message in messages:
                self._failures.setdefault(_purpose(message), str(error))
            raise
        for reply in replies:
            if reply.has_error():
                self._failures.setdefault(_purpose(reply), str(reply.error.reason))
            else:
                self._replied.add(_purpose(reply))
        self._figures.note(replies)
        if self.means is not None:
            self.means.take(messages, replies, self.weight_key, self._layout)
        return replies

    def _forget_first(self, messages: Sequence[Message]) -> None:
        """Empty the record of the first arrays, which Flower's loop holds to its end, once none of them is sent."""
        records = [record for message in messages[:1] for record in message.content.array_records.values()]
        sent = {id(array) for record in records for array in record.values()}
        if self.first_arrays is not None and sent and sent.isdisjoint(map(id, self.first_arrays.values())):
            self.first_arrays.clear()
            self.first_arrays = None

    def report_figures(self) -> None:
        """Report to the backend what the strategy has computed since the last report."""
        for figures in self._figures.of(self.result):
            self.backend.report_figures(figures)

    def _check_started(self, messages: Sequence[Message] = ()) -> None:
        """Refuse to go past a model or statistics that the run is to start from; raises ConfigurationError."""
        if (known := known_statistics()) is not None:
            known.check_use()
        asks = any(not is_query(message.metadata.message_type) for message in messages)
        if self.awaits_start and (asks or not messages):
            raise ConfigurationError(
                "the run is to start from an initial model, and the app sends its own: it has a loop of its own and "
                "never calls Strategy.start of flwr.serverapp (or the legacy Server.fit). Let it call that, or read "
                "the model in the app"
            )

    def check_wait(self, waits: NodeWait) -> None:
        """Refuse to wait for so many nodes if there will never be as many; raises ConfigurationError."""
        most = self.most_nodes()
        if most is not None and waits.nodes > most:
            setting = f" ({waits.setting})" if waits.setting else ""
            raise ConfigurationError(
                f"the strategy waits for {waits.nodes} nodes{setting}, and there are {most} (members of the "
                "federation; --clients of a simulation): it would wait for ever. Let it wait for fewer "
                "(min_available_nodes, min_train_nodes, min_evaluate_nodes; of the legacy API min_available_clients, "
                "min_fit_clients, min_evaluate_clients), or let there be more",
                check="too-few-nodes",
            )

    def _look_ahead(self) -> None:
        """What cannot be asked later in the first round is refused before its first message."""
        coming = [] if self._looked_ahead else samples(self._present)
        for sample in coming:
            self.check_wait(NodeWait.of(sample.least))
        self.expected_nodes = {sample.message_type: sample.size for sample in coming}
        self._looked_ahead |= bool(coming)

    def note_final(self, arrays: ArrayRecord, history: History) -> None:
        """The parameters that a legacy Server ended with, and what it found."""
        self._final, self.result = arrays, history

    def check_success(self) -> None:
        """Raise RunFailed if no client ever gave a reply, or none to a training that was asked for.

        ConfigurationError if the app never started from the model that it was to start from.
        """
        if (reason := self._failures.get("train")) is not None and "train" not in self._replied:
            raise RunFailed(f"no training of the run gave a reply; the first failed: {reason}")
        if self._failures and not self._replied:
            raise RunFailed(
                f"no exchange of the run gave a reply; the first failed: {next(iter(self._failures.values()))}",
                check="no-reply",
            )
        self._check_started()

    def conform(self, record: ArrayRecord) -> ModelState:
        """The record in the dtypes of the first model of the run, which the strategy may have changed.

        Raises AppError for an array that is not a NumPy one, and for a value that its dtype cannot hold.
        """
        try:
            return cast_to_layout(state_from_arrays(record, like=self._layout), self._layout)
        except EncodingError as error:
            raise AppError(str(error)) from None


def with_ids(messages: Iterable[Message]) -> list[Message]:
    """The messages, each with a new id of its own; its sender alone may set one, and Flower's Grids do it so too."""
    numbered = list(messages)
    for message in numbered:
        message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
    return numbered


def _purpose(message: Message) -> str:
    """What a message asks for, or answers: train, evaluate, query, or a question of the legacy API."""
    return message.metadata.message_type.partition(".")[0]
