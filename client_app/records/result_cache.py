"""Cache of the last local result, for as long as the server may repeat the same exchange.

An exchange may end without a sum and be repeated: too few clients were left, or an update was too large for its scales.
The app does not run again for that: an app with state of its own would take the step twice, and two sums of one task
would contain different updates. If the policy hides failures, a failure is cached like a success: were it tried again,
a client that failed by chance in one attempt and not in the next would be the difference between the two sums.

The cache has one entry. Its new model lies in the state folder, readable by the owner alone. The next task removes it,
and so does the end or the start of the agent. If the disk has changed it since it was written, it counts for nothing,
and the app runs again, as after a restart.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from client_app.ranks.messages import LocalAnswer
from fedcore.state import sha256_file
from fedcore.system.concurrency import in_thread
from fedcore.wire.tasks import Task

ANSWER_FOLDER: Final = "answer"
_PER_ATTEMPT: Final = frozenset(
    {"exchange", "attempt", "cohort", "quorum", "protection", "encoding", "roster", "previous", "seconds"}
)
"""Fields of a task that may differ in a repeat: they say how its sum is made, and the app sees none of them."""


class ResultCache:
    """The last result of one client; use as a context manager, so that nothing of it outlives the agent."""

    def __init__(self, state_dir: Path, warn: Callable[[str], None] = lambda text: None) -> None:
        """Read nothing: what an earlier agent left is removed.

        Args:
            state_dir: the client's state folder.
            warn: tells the owner that the disk has changed the model.
        """
        self._warn = warn
        self.model: Final = state_dir / ANSWER_FOLDER / "local.safetensors"
        """Where the local work puts its new model."""
        self._key = ""
        self._result: LocalAnswer | Exception | None = None
        self._sha256 = ""
        """Of the model, as it was written; "" without one."""

    def has(self, task: Task) -> bool:
        """Whether the result of this task, or of an earlier attempt at it, is cached."""
        return task_digest(task) == self._key

    async def get_or_run(
        self, task: Task, run: Callable[[], Awaitable[LocalAnswer]], *, keep_failure: bool
    ) -> LocalAnswer:
        """Return the cached result of a task, or run it; raises what `run` raised.

        Args:
            task: what the server asks for.
            run: does the local work.
            keep_failure: whether a failure is cached, so that a repeat fails without another try.
        """
        if not self.has(task) or not await self._is_intact():
            self.clear()
            self.model.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                self._result = await run()
            except Exception as error:
                if not keep_failure:
                    raise
                self._result = error
            self._sha256 = await in_thread(self._digest)
            self._key = task_digest(task)
        assert self._result is not None  # noqa: S101 - a cached task has a result
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def clear(self) -> None:
        """Remove the result."""
        self._key, self._result, self._sha256 = "", None, ""
        shutil.rmtree(self.model.parent, ignore_errors=True)

    async def _is_intact(self) -> bool:
        """Whether the model is what the local work wrote; if not, the owner is told."""
        if await in_thread(self._digest) == self._sha256:
            return True
        self._warn(
            f"the local result in {self.model.parent} was changed on the disk since it was written, so the app runs "
            "again; look after the disk"
        )
        return False

    def _digest(self) -> str:
        try:
            return sha256_file(self.model)
        except OSError:
            return ""

    def __enter__(self) -> Self:
        self.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def task_digest(task: Task) -> str:
    """SHA-256, hex, of what the app gets to see: the same for all attempts at one exchange, and for nothing else.

    The number of the first attempt is part of it: a ServerApp that sends the same message twice means two runs.
    """
    fields = task.model_dump(mode="json", exclude=set(_PER_ATTEMPT))
    fields["first_attempt"] = task.exchange - task.attempt + 1
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(b"fedcore/question/v1\x00" + text.encode("ascii")).hexdigest()
