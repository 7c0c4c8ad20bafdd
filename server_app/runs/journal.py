"""The journal of a run: what its ServerApp asked for, in order, and what it was answered.

A ServerApp cannot be written down, but it can be started again: given the same answers it comes to the same state, to
the bit. So every request is kept before anything is done for it, and its answer before the app gets it. What is kept
of an answer is small: the sums and replies are those of an exchange, and lie where that left them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from fedcore.errors import FedcoreError
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.engine.state import RunState
from fedcore.wire.base import ClientId, Message
from fedcore.wire.tasks import KeptTask, ModelRef, is_training
from server_app.exchanges.secure import UNMASK
from server_app.runs.app.messages import ExchangeAsked, NodesAsked, PlainAsked
from server_app.storage.store import Store
from server_app.storage.tables import ExchangeRow, StepRow


class RunInterrupted(FedcoreError):
    """The ServerApp, started again, asked for something else than before: the run cannot go on from where it was."""

    exit_code = 5


class KeptAnswer(Message):
    """The answer to one request; exactly one field of the first six says which.

    exchange: whose replies it holds. groups: those of the groups of a drawn exchange, one reply each. withheld: no
    replies, since nobody was asked. refused, spent: why there is none, by failure or by the privacy budget. absent: who
    was asked for, in plain mode, and was not there.
    """

    nodes: list[ClientId] | None = None
    exchange: int | None = None
    groups: list[int] | None = None
    withheld: bool = False
    refused: str | None = None
    spent: str | None = None
    absent: list[int] = Field(default_factory=list)


class Journal:
    """Goes along with the requests of one start of the ServerApp.

    steps: those that are kept. trained: SHA-256 of the model of each training that it asked for so far.
    """

    def __init__(self, store: Store, run: str, steps: Sequence[StepRow] = ()) -> None:
        self._store = store
        self._run = run
        self._steps = {step.number: step for step in steps}
        self.number = 0
        self.trained: list[str] = []

    @property
    def known(self) -> bool:
        """Whether the app has asked for anything in an earlier life."""
        return bool(self._steps)

    @property
    def answered(self) -> int:
        """How many requests have their answer already."""
        return sum(step.answer is not None for step in self._steps.values())

    async def begin(self, request: Mapping[str, Any]) -> KeptAnswer | None:
        """The answer to the next request where it has one; otherwise it is kept. Raises RunInterrupted."""
        self.number += 1
        if request.get("op") == "exchange" and is_training(request["message_type"]) and request["model"] is not None:
            self.trained.append(request["model"])
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).digest()
        step = self._steps.get(self.number)
        if step is None:
            await self._store.open_step(self._run, self.number, digest, request)
            return None
        if step.digest != digest:
            raise RunInterrupted(_difference(self.number, step.request, request))
        return None if step.answer is None else KeptAnswer.model_validate(step.answer)

    async def answer(self, answer: KeptAnswer) -> None:
        """Keep the answer to the last request."""
        await self._store.answer_step(self._run, self.number, answer.model_dump(mode="json", exclude_defaults=True))


def fold_rows(state: RunState, rows: Sequence[ExchangeRow]) -> None:
    """Take the exchanges of earlier steps into the state of their run."""
    for row in rows:
        state.count = max(state.count, row.exchange)
        if row.result is not None:
            state.take(KeptTask.model_validate(row.task), ExchangeOutcome.from_json(row.result))
        elif row.stage == UNMASK:
            state.take_open(KeptTask.model_validate(row.task))
    state.take_groups()


def as_kept(message: NodesAsked | ExchangeAsked | PlainAsked, files: Mapping[str, ModelRef]) -> dict[str, Any]:
    """A request as it is kept and compared: files by their SHA-256, and without what is new in every process.

    files: what the message names, by path.
    """
    kept: dict[str, Any] = message.model_dump(mode="json")
    if isinstance(message, ExchangeAsked) and message.model is not None:
        kept["model"] = files[message.model].sha256
    if isinstance(message, PlainAsked):
        for question, asked in zip(kept["questions"], message.questions, strict=True):
            question["content"] = files[asked.content].sha256
            del question["head"]["message_id"], question["head"]["created_at"]
    return kept


def _difference(number: int, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    fields = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return (
        f"the ServerApp was started again and did not do the same again: its request {number} differs in "
        f"{', '.join(fields)}. What it draws from the clock or the system's randomness is another each time; let it "
        "use random, numpy.random or torch, which are seeded. The run's last model is kept: begin another run with it"
    )
