"""Messages between a simulation and the workers of its pool: JSON lines, with the paths of safetensors files.

A worker answers one order by a message for each client as soon as that is done, and warns in between; so these are not
the `Calls` of `fedcore.system.workers.calls`, which have one answer each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from fedcore.errors import AppError
from fedcore.system.workers.failures import RaisedError, WorkerMessage
from fedcore.wire.base import MetricValue
from fedcore.wire.tasks import MessageHead, ModelRef, Task
from fedcore.wire.uploads import ReplyError

# --- to a worker ----------------------------------------------------------------------------------------------------


class Begin(WorkerMessage):
    """What the processes are started with."""

    app: Path
    clients: int
    """How many the simulation has."""
    states: Path
    """The folder of their Contexts."""
    at_once: int
    """How many train at once, as `BatchedClients` has it."""
    threads: int
    """Of each process."""
    connections: list[int]
    """Descriptors, one a worker."""
    control: int
    """The descriptor for `WorkerEnded`."""


class ExchangeStart(WorkerMessage):
    """What the messages after this one are about; answered by `Sized`.

    model
        A safetensors file.
    out
        The folder for results.
    """

    kind: Literal["exchange"] = "exchange"
    task: Task
    model: Path | None = None
    out: Path


class Train(WorkerMessage):
    """These clients do the exchange's task, in this order. aggregated_rounds: of each, as `ClientRunner` has it."""

    kind: Literal["train"] = "train"
    clients: list[int]
    aggregated_rounds: list[int]


class ClientQuestion(WorkerMessage):
    """What one client of a plain exchange is asked; the rest of its task is that of the exchange."""

    client: int
    message_type: str
    head: MessageHead
    reference: ModelRef
    content: Path
    out: Path
    aggregated_round: int


class Ask(WorkerMessage):
    """These clients answer their messages, in this order."""

    kind: Literal["ask"] = "ask"
    questions: list[ClientQuestion]


TO_WORKER: Final[TypeAdapter[ExchangeStart | Train | Ask]] = TypeAdapter(
    Annotated[ExchangeStart | Train | Ask, Field(discriminator="kind")]
)


# --- from a worker --------------------------------------------------------------------------------------------------


class AppLoaded(WorkerMessage):
    """The app is loaded. pinned: it keeps something of its clients in this process."""

    kind: Literal["ready"] = "ready"
    pinned: bool


class Sized(WorkerMessage):
    """How many clients of the exchange are worked on at a time."""

    kind: Literal["sized"] = "sized"
    at_once: int


class WarningLine(WorkerMessage):
    """A warning for the user."""

    kind: Literal["told"] = "told"
    line: str


class Made(WorkerMessage):
    """The result of one client's task.

    file
        The new model, if it trained.
    seconds
        That it took.
    """

    kind: Literal["made"] = "made"
    client: int
    examples: int
    metrics: dict[str, MetricValue]
    file: Path | None
    seconds: float


class Answered(WorkerMessage):
    """A client's reply is in the file that the question named, or `error` is its reply."""

    kind: Literal["answered"] = "answered"
    client: int
    examples: int | None
    metrics: dict[str, MetricValue]
    error: ReplyError | None
    seconds: float


class ClientRaised(RaisedError):
    """An exception of a client's app, or of loading the app."""

    client: int | None
    """Whose app raised it, None before the first task."""

    def exception(self) -> Exception:
        """One of fedcore's as it was; any other, whose traceback was printed, becomes an AppError."""
        if self.error:
            return super().exception()
        whose = "the app" if self.client is None else f"the app of client {self.client}"
        return AppError(f"{whose} raised {self.line}")


class WorkerEnded(WorkerMessage):
    """A worker's process has ended."""

    worker: int
    status: int
    """Its exit status; negative for a signal."""


FROM_WORKER: Final[TypeAdapter[AppLoaded | Sized | WarningLine | Made | Answered | ClientRaised]] = TypeAdapter(
    Annotated[AppLoaded | Sized | WarningLine | Made | Answered | ClientRaised, Field(discriminator="kind")]
)
FromWorker: TypeAlias = AppLoaded | Sized | WarningLine | Made | Answered | ClientRaised
