"""What the local work gave, kept for as long as the server may ask the same again.

An exchange may end without a sum and be repeated: too few clients were left, or an update was too large for its scales.
The app is not run again for that: one with a state of its own would take the step twice, and two sums of one question
would hold other updates. Where nobody is told of failures, one is kept like a success: were it tried anew, a client
that failed by chance in one sum of a question and not in another would be the difference of the two.

One answer is kept, its new model in the state folder and readable by the owner alone. It goes when another question
comes, and when the agent ends or starts.
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
from fedcore.wire.control import Task

ANSWER_FOLDER: Final = "answer"
_OF_THE_ATTEMPT: Final = frozenset(
    {"exchange", "attempt", "cohort", "quorum", "protection", "encoding", "roster", "previous", "seconds"}
)
"""What a repeat may say otherwise: how its sum is made, and nothing that the app gets to see."""


class KeptAnswer:
    """The last answer of one client; use as a context manager, so that nothing of it outlives the agent."""

    def __init__(self, state_dir: Path) -> None:
        self.model: Final = state_dir / ANSWER_FOLDER / "local.safetensors"
        """Where the local work puts its new model."""
        self._question = ""
        self._outcome: LocalAnswer | Exception | None = None

    def knows(self, task: Task) -> bool:
        """Whether the question was answered before."""
        return question_of(task) == self._question

    async def to(self, task: Task, work: Callable[[], Awaitable[LocalAnswer]], *, keep_failure: bool) -> LocalAnswer:
        """The answer to a question, of `work` where it is new; raises what the work raised.

        keep_failure: whether the same question fails again without a try.
        """
        if not self.knows(task):
            self.forget()
            self.model.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                self._outcome = await work()
            except Exception as error:
                if not keep_failure:
                    raise
                self._outcome = error
            self._question = question_of(task)
        assert self._outcome is not None  # noqa: S101 - a known question has an outcome
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def forget(self) -> None:
        """Remove the answer."""
        self._question, self._outcome = "", None
        shutil.rmtree(self.model.parent, ignore_errors=True)

    def __enter__(self) -> Self:
        self.forget()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forget()


def question_of(task: Task) -> str:
    """SHA-256, hex, over what the app is asked: alike for all attempts at one exchange, and for nothing else.

    The number of the first attempt is part of it: an app that asks the same twice by itself means two runs.
    """
    asked = task.model_dump(mode="json", exclude=set(_OF_THE_ATTEMPT))
    asked["first_attempt"] = task.exchange - task.attempt + 1
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(b"fedcore/question/v1\x00" + text.encode("ascii")).hexdigest()
