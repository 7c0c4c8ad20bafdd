"""What a run's ServerApp process and the server say to each other: one JSON object a line.

Models never travel in here: they are safetensors files in the run's folder, named by their path.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from fedcore.run.exchange import ExchangeReply
from fedcore.run.plain import PlainReply
from fedcore.wire.base import ClientId, Message, Name, Scalar, Sha256
from fedcore.wire.events import FiguresFound
from fedcore.wire.tasks import MessageHead


class Start(Message):
    """Server to app: what to run; a question for statistics in place of the app's ServerApp, if there is one.

    groups: into how many a training is cut, each with a reply of its own; least_groups: how many are sure to have one.
    buffered: whether a training sums updates of several rounds.
    initial: the path of the model that its strategy starts from; None for the app's own. noised: whether secure sums
    have privacy noise. members: how many the federation has.
    """

    op: Literal["start"] = "start"
    app: str
    folder: str
    run: Name
    run_config: dict[str, Scalar]
    aggregation: Literal["secure", "plain"]
    groups: int = 1
    least_groups: int = 1
    buffered: bool = False
    question: dict[str, Any] | None = None
    initial: str | None = None
    noised: bool = False
    compressed: bool = False
    members: int | None = None


class NodesAsked(Message):
    """App to server: who is connected?"""

    op: Literal["nodes"] = "nodes"


class Nodes(Message):
    """Server to app: these clients are. members: how many the federation has now."""

    op: Literal["nodes"] = "nodes"
    nodes: list[ClientId]
    members: int | None = None


class Waits(Message):
    """App to server, without an answer: it asks for nodes in vain; the fields are those of `ExchangeBackend.waits`."""

    op: Literal["waits"] = "waits"
    nodes: int = Field(ge=0)
    setting: str = Field(max_length=200)


class ExchangeAsked(Message):
    """App to server: carry out one exchange; as `fedcore.run.exchange.ExchangeRequest`."""

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


class Replies(Message):
    """Server to app: the replies of an exchange, their models by path."""

    op: Literal["replies"] = "replies"
    replies: list[ExchangeReply]


class PlainQuestion(Message):
    """A message to one client: its content is a record file, which several may share."""

    node: int
    message_type: Name
    head: MessageHead
    content: str


class PlainAsked(Message):
    """App to server: carry out one plain exchange, with a message for each of some clients.

    weight_key: as in a Task. timeout: seconds that the app waits. model: SHA-256 of the model in all of them, as the
    safetensors file that secure mode would send; None if they are sent no model, or different ones.
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


class Found(Message):
    """App to server, without an answer: what the strategy made of the replies that it had."""

    op: Literal["found"] = "found"
    figures: FiguresFound


class Finished(Message):
    """App to server: the ServerApp returned; the path of its final model, or the statistics that were asked for."""

    op: Literal["finished"] = "finished"
    model: str | None
    statistics: dict[str, Any] | None = None


class Broken(Message):
    """App to server: the ServerApp failed, and why."""

    op: Literal["broken"] = "broken"
    reason: str


FromApp = Annotated[
    NodesAsked | Waits | ExchangeAsked | PlainAsked | Found | Finished | Broken, Field(discriminator="op")
]
ToApp = Annotated[Start | Nodes | Replies | PlainReplies | ExchangeRefused | BudgetReached, Field(discriminator="op")]

FROM_APP: TypeAdapter[FromApp] = TypeAdapter(FromApp)
TO_APP: TypeAdapter[ToApp] = TypeAdapter(ToApp)
