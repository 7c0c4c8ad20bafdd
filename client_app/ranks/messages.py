"""What the agent and a rank say to each other, one JSON object a line (`fedcore.system.json_lines`).

    agent -> rank   Greeting          once
    rank -> agent   Ready, or Failure
    agent -> rank   RankTask          repeated
    rank -> agent   Progress          once a second, while the task runs
    rank -> agent   LocalAnswer from rank 0, Done from the others, or Failure

Every rank gets every task. Rank 0 alone writes the new model, for which the others may have to hand over their parts,
and says what came out. Models travel as safetensors files, by path, and are mapped into memory. In a plain exchange
they are record files, with all that a message and its reply hold.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from fedcore.wire.base import Message, MetricValue, Scalar
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import ReplyError


class Greeting(Message):
    """Agent to rank: which app it runs, as whom. The fields are those of `client_app.ranks.group.GroupSettings`."""

    op: Literal["greeting"] = "greeting"
    app: str
    app_sha256: str
    client_id: int
    node_config: dict[str, Scalar]
    local_folder: str | None
    engine: dict[str, Scalar]


class RankTask(Message):
    """Agent to rank: run the ClientApp once.

    model: path of the global model, None for none.
    out: where rank 0 puts the new one.
    model_bytes: size of the model, for machines that have yet to receive it.
    counted: the round of the client's last training whose update was in its sum, 0 for none.
    traceparent: the span of this work (W3C Trace Context), for spans of the app's own.
    """

    op: Literal["task"] = "task"
    task: Task
    model: str | None
    out: str
    model_bytes: int = 0
    counted: int = 0
    traceparent: str = ""


class Ready(Message):
    """Rank to agent: the app is loaded; its hash."""

    op: Literal["ready"] = "ready"
    app_sha256: str


class Progress(Message):
    """Rank to agent: it is alive, and how far it is with a task.

    steps, parts: batches of this task, and parts of them; see `fedcore.system.workers.step_counter`.
    in_loop: whether a loop over batches is under way, so that another step is due.
    """

    op: Literal["progress"] = "progress"
    steps: int
    parts: int
    in_loop: bool


class LocalAnswer(Message):
    """Rank 0 to agent: the result of a task.

    trained: whether a file was written, with the new model or the plain reply.
    error: of a plain exchange, the app's error in place of a reply.
    """

    op: Literal["answer"] = "answer"
    examples: int
    metrics: dict[str, MetricValue]
    trained: bool
    error: ReplyError | None = None


class Done(Message):
    """Another rank to agent: it has done its part of a task."""

    op: Literal["done"] = "done"


class Failure(Message):
    """Rank to agent: loading the app, or a task, failed on `rank`; see `client_app.ranks.failures`."""

    op: Literal["failure"] = "failure"
    kind: Literal["rank-exception", "rank-killed", "out-of-memory", "storage-full", "wrong-records", "peer-lost"]
    text: str
    rank: int


ToRank = Annotated[Greeting | RankTask, Field(discriminator="op")]
FromRank = Annotated[Ready | Progress | LocalAnswer | Done | Failure, Field(discriminator="op")]

TO_RANK: TypeAdapter[ToRank] = TypeAdapter(ToRank)
FROM_RANK: TypeAdapter[FromRank] = TypeAdapter(FromRank)
