"""How a task fails on a rank, as one line of JSON on the rank's side and as one exception on the agent's.

Of a failure only its fixed name ever leaves the machine, and that only where its owner lets failures be told:

| name           | what happened                                                              |
| -------------- | -------------------------------------------------------------------------- |
| rank-exception | the app's own code raised, or a data loader's worker died                  |
| rank-killed    | a rank ended without an answer: a signal, an exit, a broken connection     |
| rank-hung      | no answer before the task's deadline                                       |
| out-of-memory  | a rank could not allocate memory, on the machine or on its device          |
| job-refused    | the cluster's scheduler did not take the job that ranks run in             |
| job-queued     | that job waited in the queue until the task's deadline                     |
| job-lost       | that job ended: a node failed, its time was over, somebody cancelled it    |
"""

from __future__ import annotations

import re
import traceback
from typing import Final

from client_app.ranks.messages import Failure
from fedcore.errors import AppError, FedcoreError, OutOfMemory, StorageFull, WorkerDied
from fedcore.system.memory import WHAT_TO_LOWER, is_out_of_memory
from fedcore.system.peers import tells_of_lost_peer

RANK_EXCEPTION: Final = "rank-exception"
RANK_KILLED: Final = "rank-killed"
RANK_HUNG: Final = "rank-hung"
OUT_OF_MEMORY: Final = "out-of-memory"
JOB_REFUSED: Final = "job-refused"
JOB_QUEUED: Final = "job-queued"
JOB_LOST: Final = "job-lost"

PEER_LOST: Final = "peer-lost"
"""On the way to the agent alone: this rank is well, but a collective broke because another rank ended."""

_SANDBOXED: Final = re.compile(r"^(\w+\.)*(PermissionError|FileNotFoundError|gaierror)\b|Network is unreachable", re.M)
"""How exceptions end a traceback, or one in its chain, that the sandbox may have caused."""
_WHAT_THE_SANDBOX_ALLOWS: Final = (
    "in the sandbox an app reads what --data-dir, --read and the node config name, writes to the folder in TMPDIR "
    "(tempfile uses it), and has no network (docs/howto/client.md)"
)


class AppFailed(AppError):
    """The app's own code raised on `rank`. `traceback` is for the client's own log and never leaves the machine."""

    check = RANK_EXCEPTION

    def __init__(self, traceback: str, *, rank: int = 0) -> None:
        lines = traceback.strip().splitlines() or ["an error without a text"]
        advice = f"; {_WHAT_THE_SANDBOX_ALLOWS}" if _SANDBOXED.search(traceback) else ""
        super().__init__(f"rank {rank} raised {lines[-1]}{advice}")
        self.traceback, self.rank = traceback, rank


class RankFailed(WorkerDied):
    """A rank ended, hung or ran out of memory; `check` is the fixed name of what happened."""

    def __init__(self, text: str, check: str) -> None:
        super().__init__(text)
        self.check = check


class RankLeftAlone(RankFailed):
    """A rank that is well lost its connection to another one, which is the one to blame."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank} lost its connection to another rank ({text})", RANK_KILLED)


def describe(error: BaseException, rank: int) -> Failure:
    """What `rank` tells of an exception; its inverse is `failure_from`."""
    if isinstance(error, StorageFull):
        return Failure(kind="storage-full", text=str(error), rank=rank)
    if isinstance(error, AppError):
        return Failure(kind="wrong-records", text=str(error), rank=rank)
    if is_out_of_memory(error):
        text = str(error) if isinstance(error, OutOfMemory) else f"{_last_line(error)}; {WHAT_TO_LOWER}"
        return Failure(kind=OUT_OF_MEMORY, text=text, rank=rank)
    if isinstance(error, RuntimeError) and tells_of_lost_peer(_last_line(error)):
        return Failure(kind=PEER_LOST, text=_last_line(error), rank=rank)
    return Failure(kind=RANK_EXCEPTION, text="".join(traceback.format_exception(error)), rank=rank)


def failure_from(failure: Failure) -> FedcoreError:
    """The exception that a rank's message stands for."""
    text, rank = failure.text, failure.rank
    match failure.kind:
        case "storage-full":
            return StorageFull(text)
        case "wrong-records":
            return AppError(text)
        case "out-of-memory":
            return RankFailed(f"rank {rank} is out of memory ({text})", OUT_OF_MEMORY)
        case "peer-lost":
            return RankLeftAlone(rank, text)
        case "rank-killed":
            return RankFailed(text, RANK_KILLED)
        case _:
            return AppFailed(text, rank=rank)


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
