"""What a run's ServerApp process and the server say to each other: one JSON object a line.

Models never travel in here: they are safetensors files in the run's folder, named by their path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter

from fedcore.flower.start import ServerAppStart
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.state import Layout, ModelState
from fedcore.wire.base import ClientId, Message, Name, Sha256
from fedcore.wire.events import FiguresFound
from fedcore.wire.tasks import MessageHead


class Start(ServerAppStart):
    """Server to app: what to run.

    folder
        Where it leaves its files.
    question
        For statistics, in place of the app's ServerApp; None for an app.
    initial
        The path of the model that its strategy starts from; None for the app's own.
    known_statistics
        Of columns, with the earlier run that they are of, as `RunRow.known_statistics`; None to ask the clients.
    """

    op: Literal["start"] = "start"
    folder: str
    question: dict[str, Any] | None = None
    initial: str | None = None
    known_statistics: dict[str, Any] | None = None


class NodesCall(Message):
    """App to server: which clients are connected?"""

    op: Literal["nodes"] = "nodes"


class Nodes(Message):
    """Server to app: these clients are.

    members
        How many the federation has now.
    """

    op: Literal["nodes"] = "nodes"
    nodes: list[ClientId]
    members: int | None = None


class WaitReport(Message):
    """App to server, without a reply: it asks for nodes in vain; the fields are those of `ExchangeBackend.waits`."""

    op: Literal["waits"] = "waits"
    nodes: int = Field(ge=0)
    setting: str = Field(max_length=200)


class RoomCall(Message):
    """App to server: is there room for a round of this model? Asked once, before any of a large one is written.

    layout
        Of the model.
    nodes
        How many the round asks.
    """

    op: Literal["room"] = "room"
    layout: Layout
    nodes: int = Field(ge=1)


class Room(Message):
    """Server to app: there is; otherwise the server ends the run."""

    op: Literal["room"] = "room"


class ExchangeCall(Message):
    """App to server: carry out one exchange; the fields are those of `ExchangeRequest`.

    model
        The path of its file.
    """

    op: Literal["exchange"] = "exchange"
    message_type: Name
    nodes: list[ClientId]
    server_round: int
    model: str | None
    arrays_key: str
    configs: dict[str, dict[str, Any]]
    weight_key: Name
    timeout: float | None
    ahead: dict[str, int] = Field(default_factory=dict)

    @classmethod
    def of(cls, request: ExchangeRequest, model: Path | None) -> Self:
        """The message for a request whose model lies at a path."""
        return cls(
            message_type=request.message_type,
            nodes=list(request.nodes),
            server_round=request.server_round,
            model=str(model) if model else None,
            arrays_key=request.arrays_key,
            configs={key: dict(value) for key, value in request.configs.items()},
            weight_key=request.weight_key,
            timeout=request.timeout,
            ahead=dict(request.ahead),
        )

    def request(self, model: ModelState | None = None) -> ExchangeRequest:
        """The request in it."""
        return ExchangeRequest(
            message_type=self.message_type,
            nodes=tuple(self.nodes),
            server_round=self.server_round,
            model=model,
            arrays_key=self.arrays_key,
            configs=self.configs,
            weight_key=self.weight_key,
            timeout=self.timeout,
            ahead=self.ahead,
        )


class Replies(Message):
    """Server to app: the replies of an exchange, their models by path."""

    op: Literal["replies"] = "replies"
    replies: list[ExchangeReply]


class PlainQuestion(Message):
    """A message to one client.

    content
        The path of its record file, which several may share.
    """

    node: int
    message_type: Name
    head: MessageHead
    content: str


class PlainExchangeCall(Message):
    """App to server: carry out one plain exchange, with a message for each of some clients.

    weight_key
        The metric that holds the number of examples.
    timeout
        Seconds that the app waits.
    model
        SHA-256 of the model in all of them, as the safetensors file that secure mode would send; None if they hold no
        model, or different ones.
    """

    op: Literal["plain-exchange"] = "plain-exchange"
    server_round: int
    weight_key: Name
    timeout: float | None
    model: Sha256 | None = None
    questions: list[PlainQuestion] = Field(min_length=1)


class PlainReplies(Message):
    """Server to app: the replies of a plain exchange, record files by path or errors."""

    op: Literal["plain-replies"] = "plain-replies"
    replies: list[PlainReply]


class ExchangeRefused(Message):
    """Server to app: no attempt succeeded."""

    op: Literal["exchange-refused"] = "exchange-refused"
    reason: str


class BudgetReached(Message):
    """Server to app: no further exchange, because of the privacy budget."""

    op: Literal["budget-reached"] = "budget-reached"
    reason: str


class FiguresReport(Message):
    """App to server, without a reply: what the strategy made of the replies that it had."""

    op: Literal["found"] = "found"
    figures: FiguresFound


class AppEnd(Message):
    """App to server: the ServerApp returned.

    model
        The path of its final model.
    statistics
        The reply to the question of the start.
    """

    op: Literal["finished"] = "finished"
    model: str | None
    statistics: dict[str, Any] | None = None


class AppFailure(Message):
    """App to server: the ServerApp failed, and why."""

    op: Literal["broken"] = "broken"
    reason: str


AppCall = NodesCall | ExchangeCall | PlainExchangeCall
"""What a ServerApp waits for a reply to."""
AppReply = Nodes | Replies | PlainReplies | ExchangeRefused | BudgetReached

FromApp = Annotated[AppCall | RoomCall | WaitReport | FiguresReport | AppEnd | AppFailure, Field(discriminator="op")]
ToApp = Annotated[Start | AppReply | Room, Field(discriminator="op")]

FROM_APP: TypeAdapter[FromApp] = TypeAdapter(FromApp)
TO_APP: TypeAdapter[ToApp] = TypeAdapter(ToApp)
