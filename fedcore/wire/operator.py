"""Messages between the operator and the server about runs, clients and rosters, as pydantic models.

As in `fedcore.wire.base`, unknown keys are refused, and sizes are bounded here.
Models never travel in here: they are octet streams, named by their SHA-256.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from fedcore.system.left_files import is_plain_path
from fedcore.wire.base import Bytes, Message, Moment, Name, Scalar, Sha256
from fedcore.wire.tasks import ModelRef


class RunIn(Message):
    """A run as the operator submits it: the app's files, its run config, and the settings of `[tool.fedcore]`.

    statistics: a `fedcore.data.statistics.Question` that is asked in place of the app's own ServerApp, None for that.
    initial_model: SHA-256 of the model that the app's strategy starts from in place of its own, which was sent before
        (PUT /v1/models/{sha256}); "" for the app's own.
    statistics_from: an earlier run, whose statistics of columns the app takes in place of asking for them; "" to ask.
    """

    app_sha256: Sha256
    files: dict[str, Bytes]
    run_config: dict[str, Scalar] = Field({})
    settings: dict[str, Any] = Field({})
    statistics: dict[str, Any] | None = None
    initial_model: Sha256 | Literal[""] = ""
    statistics_from: Name | Literal[""] = ""


class RunStatus(StrEnum):
    """The state of a run; `interrupted` is a run that cannot go on as its record says.

    A run that is `finished` with a reason ended early, at its privacy budget, with the model that it had then.
    """

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def final(self) -> bool:
        return self not in (RunStatus.WAITING, RunStatus.RUNNING)


class RunInfo(Message):
    """One run, without its events.

    submitted_at, started_at, ended_at: by the server's clock; None if it has not come to that.
    rounds: that are done.
    epsilon: what they spent; None without differential privacy.
    position: in the queue, 1 for the run that is next, None for one that does not wait.
    model: the final one of a finished run; of any other the last checkpoint.
    """

    run: str
    status: RunStatus
    reason: str
    aggregation: Literal["secure", "plain"]
    app: str
    app_sha256: Sha256
    submitted_at: Moment | None = None
    started_at: Moment | None = None
    ended_at: Moment | None = None
    rounds: int = 0
    epsilon: float | None = None
    position: int | None = None
    model: ModelRef | None = None


MOST_LISTED: Final = 200
"""Runs in one answer."""


class RunsOut(Message):
    """GET /v1/runs: runs, the newest first.

    more: whether older ones follow the last of these.
    """

    runs: list[RunInfo] = Field(max_length=MOST_LISTED)
    more: bool


class ClientRunState(StrEnum):
    """The state of a client in a run, from what the server can see.

    `training` is local work that the server has not seen the end of; `done` means that the client's update is here.
    """

    AWAY = "away"
    WAITING = "waiting"
    TRAINING = "training"
    UPLOADING = "uploading"
    DONE = "done"
    DROPPED = "dropped"


class RunClientOut(Message):
    """One client of a run.

    why: what it waits for, or for what reason it was dropped.
    """

    id: int
    name: str
    state: ClientRunState
    why: str = ""


class RunClientsOut(Message):
    """GET /v1/runs/{run}/clients.

    exchange, server_round, stage: what is open now; 0 and "" between exchanges.
    groups: into how many the cohort is cut, or is to be.
    """

    run: str
    exchange: int
    server_round: int
    stage: str
    groups: int = 1
    clients: list[RunClientOut]


RESULTS_FILE: Final = "results.json"
"""The path of a run's metrics by round, among the files of the run."""


def _checked_path(path: str) -> str:
    if not is_plain_path(path):
        raise ValueError("not a plain path below a folder")
    return path


class RunFile(Message):
    """A file that a run left: `results.json`, or one that its ServerApp wrote, whose path begins with `files/`."""

    path: Annotated[str, AfterValidator(_checked_path)]
    size: int = Field(ge=0)
    sha256: Sha256


class RunFilesOut(Message):
    """GET /v1/runs/{run}/files.

    left_out: how many others the server did not keep.
    """

    files: list[RunFile] = Field(max_length=1001)
    left_out: int = Field(ge=0)


_NEW_OF_CLIENTS: Final = ("clock_seconds", "up_speed", "down_speed", "rests")


class ClientOut(Message):
    """One member of the roster, whether it is connected, may train now, and tells why its local work fails.

    clock_seconds: by which its clock is ahead of the server's, if it is wrong.
    up_speed, down_speed: bytes a second that its line carries to the server and to the client, if these are few.
    rests: why it is not asked now, since it would miss its stage again; "" if it is.
    """

    id: int
    name: str
    online: bool
    eligible: bool
    reports_failures: bool
    app_sha256: str
    last_seen_seconds: float | None
    clock_seconds: float | None = None
    up_speed: float | None = None
    down_speed: float | None = None
    rests: str = ""

    @model_serializer(mode="wrap")
    def _without_nothing(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Operators of before know no such fields, which mostly say nothing."""
        made: dict[str, Any] = plainly(self)
        return {name: value for name, value in made.items() if name not in _NEW_OF_CLIENTS or value not in (None, "")}


class ServerOut(Message):
    """GET /v1/clients: who is connected."""

    federation: str
    version: str
    roster: int
    clients: list[ClientOut]


class RosterIn(Message):
    """PUT /v1/roster: rosters that follow the newest that the server has, in order, each the text of a signed one."""

    rosters: list[str]


class RosterOut(Message):
    """What became of published rosters: the version in use, and the newest, which an open exchange may hold up."""

    roster: int
    newest: int
