"""What the agent and the host of a job say to each other, one JSON object a line (`client_app.ranks.jobs.mailbox`).

agent -> host   HostTask, HostWithdraw, Alive, HostLeave
host -> agent   HostReady, HostSteps, HostAnswer, HostFailure, HostLine, Alive
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from client_app.ranks.failures import RANK_KILLED, AppFailed, RankFailed
from client_app.ranks.messages import LocalAnswer
from fedcore.errors import AppError, FedcoreError, StorageFull
from fedcore.wire.base import Message, Scalar
from fedcore.wire.tasks import Task


class HostSettings(Message):
    """The file `job.json`: what the host's group runs. The fields are those of `GroupSettings`, with paths as text.

    nodes: machines of the job.
    read, variables, confined: the owner's rules for user code.
    patience: seconds without a word of the agent after which the host takes it for gone.
    """

    app: str
    app_sha256: str
    client_id: int
    node_config: dict[str, Scalar]
    data_dir: str | None
    models: str
    scratch: str
    local_folder: str | None
    engine: dict[str, Scalar]
    ranks: int
    nodes: int
    read: tuple[str, ...]
    variables: tuple[str, ...]
    confined: bool
    progress_seconds: float
    patience: float


class HostTask(Message):
    """Agent to host: run the ClientApp; the fields are those of `RankTask`. number: of this task, from 1 on."""

    op: Literal["task"] = "task"
    number: int
    task: Task
    model: str | None
    out: str
    aggregated_round: int


class HostWithdraw(Message):
    """Agent to host: nobody waits for this task any more."""

    op: Literal["withdraw"] = "withdraw"
    number: int


class HostLeave(Message):
    """Agent to host: end."""

    op: Literal["leave"] = "leave"


class Alive(Message):
    """Either way: the other side runs."""

    op: Literal["alive"] = "alive"


class HostReady(Message):
    """Host to agent: the ranks have loaded the app with this hash."""

    op: Literal["ready"] = "ready"
    app_sha256: str


class HostSteps(Message):
    """Host to agent: steps of the rank that has made the fewest, and seconds since its last one."""

    op: Literal["steps"] = "steps"
    steps: int
    still: float


class HostAnswer(Message):
    """Host to agent: a task is done."""

    op: Literal["answer"] = "answer"
    number: int
    answer: LocalAnswer


class HostFailure(Message):
    """Host to agent: a task failed, or with number 0 the start. Inverse of `failure_of` is `error_of`."""

    op: Literal["failure"] = "failure"
    number: int
    kind: Literal["app", "records", "storage", "ranks"]
    check: str
    text: str
    rank: int = 0


class HostLine(Message):
    """Host to agent: a line for the agent's log, such as what the app prints."""

    op: Literal["line"] = "line"
    level: Literal["info", "warning", "error"]
    stage: str
    text: str


ToHost = Annotated[HostTask | HostWithdraw | HostLeave | Alive, Field(discriminator="op")]
FromHost = Annotated[HostReady | HostSteps | HostAnswer | HostFailure | HostLine | Alive, Field(discriminator="op")]

TO_HOST: TypeAdapter[ToHost] = TypeAdapter(ToHost)
FROM_HOST: TypeAdapter[FromHost] = TypeAdapter(FromHost)


def failure_of(number: int, error: BaseException) -> HostFailure:
    """What the host says of an exception of its group."""
    match error:
        case AppFailed():
            return HostFailure(number=number, kind="app", check="", text=error.traceback, rank=error.rank)
        case AppError():
            return HostFailure(number=number, kind="records", check=error.check or "", text=str(error))
        case StorageFull():
            return HostFailure(number=number, kind="storage", check="", text=str(error))
        case RankFailed():
            return HostFailure(number=number, kind="ranks", check=error.check, text=str(error))
        case _:
            return HostFailure(number=number, kind="ranks", check=RANK_KILLED, text=str(error) or type(error).__name__)


def error_of(failure: HostFailure) -> FedcoreError:
    """The exception that such a message stands for."""
    match failure.kind:
        case "app":
            return AppFailed(failure.text, rank=failure.rank)
        case "records":
            return AppError(failure.text, check=failure.check)
        case "storage":
            return StorageFull(failure.text)
        case "ranks":
            return RankFailed(failure.text, failure.check)
