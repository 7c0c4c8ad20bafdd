"""What a simulation and the workers of its pool say to each other: JSON lines, and paths of safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedcore.wire.control import MessageHead, MetricValue, ModelRef, ReplyError, Task


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


# --- to a worker ----------------------------------------------------------------------------------------------------


class Begin(_Line):
    """What the processes are started with.

    clients: of the simulation. states: folder where their Contexts stay. at_once: how many train at once, as
    `BatchedClients` has it. threads: of each process. connections: descriptors, one a worker. control: where `Ended`
    goes.
    """

    app: Path
    clientapp: str
    clients: int
    states: Path
    at_once: int
    threads: int
    connections: list[int]
    control: int


class Exchange(_Line):
    """What the messages after this one are about; answered by `Sized`. model: a safetensors file. out: for results."""

    kind: Literal["exchange"] = "exchange"
    task: Task
    model: Path | None = None
    out: Path


class Train(_Line):
    """These clients do the task of the exchange, in this order. counted: of each, as `ClientRunner` has it."""

    kind: Literal["train"] = "train"
    clients: list[int]
    counted: list[int]


class Question(_Line):
    """What one client of a plain exchange is asked; the rest of its task is that of the exchange."""

    client: int
    message_type: str
    head: MessageHead
    reference: ModelRef
    content: Path
    out: Path
    counted: int


class Ask(_Line):
    """These clients answer their messages, in this order."""

    kind: Literal["ask"] = "ask"
    questions: list[Question]


TO_WORKER: Final[TypeAdapter[Exchange | Train | Ask]] = TypeAdapter(
    Annotated[Exchange | Train | Ask, Field(discriminator="kind")]
)


# --- from a worker --------------------------------------------------------------------------------------------------


class Ready(_Line):
    """The app is loaded. pinned: it keeps something of its clients in this process."""

    kind: Literal["ready"] = "ready"
    pinned: bool


class Sized(_Line):
    """How many clients of the exchange are worked on at a time."""

    kind: Literal["sized"] = "sized"
    at_once: int


class Told(_Line):
    """What whoever simulates should know."""

    kind: Literal["told"] = "told"
    line: str


class Made(_Line):
    """What came of one client's task. file: the new model, where it trained. seconds: that it took."""

    kind: Literal["made"] = "made"
    client: int
    examples: int
    metrics: dict[str, MetricValue]
    file: Path | None
    seconds: float


class Answered(_Line):
    """A client's reply is in the file that the question named, or `error` is its reply."""

    kind: Literal["answered"] = "answered"
    client: int
    examples: int | None
    metrics: dict[str, MetricValue]
    error: ReplyError | None
    seconds: float


class Raised(_Line):
    """An exception. client: whose app raised it, None before the first task.

    fedcore: its name in `fedcore.errors`, "" for one that is not ours. text: what it says; line: the last of its
    traceback.
    """

    kind: Literal["raised"] = "raised"
    client: int | None
    fedcore: str
    text: str
    line: str


class Ended(_Line):
    """A worker's process has ended. status: its exit status, or less than 0 for a signal."""

    worker: int
    status: int


FROM_WORKER: Final[TypeAdapter[Ready | Sized | Told | Made | Answered | Raised]] = TypeAdapter(
    Annotated[Ready | Sized | Told | Made | Answered | Raised, Field(discriminator="kind")]
)
FromWorker: TypeAlias = Ready | Sized | Told | Made | Answered | Raised
