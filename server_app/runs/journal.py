"""The journal of a run (`fedcore.run.engine.journal`) in the server's database.

The request is there before anything is done for it. A reply is small there: sums and clients' replies are those of an
exchange, which has its files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from fedcore.errors import FedcoreError
from fedcore.run.engine.journal import (
    NODES_REQUEST,
    JournalStep,
    JsonObject,
    exchange_record,
    plain_exchange_record,
)
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.engine.state import RunState
from fedcore.wire.base import ClientId, Message
from fedcore.wire.tasks import ModelRef, StoredTask
from server_app.exchanges.secure import UNMASK
from server_app.runs.app.messages import ExchangeCall, NodesCall, PlainExchangeCall
from server_app.storage.store import Store
from server_app.storage.tables import ExchangeRow


class RunInterrupted(FedcoreError):
    """The run cannot be resumed, since its ServerApp does not repeat its requests."""

    exit_code = 5


class JournaledReply(Message):
    """The reply to one request; exactly one field of the first six says which.

    nodes
        Ids of the clients that were there.
    exchange
        The exchange whose replies it holds.
    groups
        The exchanges of the groups of a draw, with one reply each.
    withheld
        No replies, since no client was asked.
    refused
        Why there is none, if no attempt succeeded.
    spent
        Why there is none, if the privacy budget does not allow it.
    absent
        Clients that a plain exchange was to ask, and that were not there.
    """

    nodes: list[ClientId] | None = None
    exchange: int | None = None
    groups: list[int] | None = None
    withheld: bool = False
    refused: str | None = None
    spent: str | None = None
    absent: list[int] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTable:
    """The steps of one run; a `JournalStore`."""

    store: Store
    run: str

    async def steps(self) -> list[JournalStep]:
        """All steps, from number 1 on."""
        rows = await self.store.steps(self.run)
        return [JournalStep(request=row.request, digest=row.digest, reply=row.answer) for row in rows]

    async def open_step(self, number: int, digest: bytes, request: JsonObject) -> None:
        """Make a request durable; raises ConflictingMessage if the number has another one."""
        await self.store.open_step(self.run, number, digest, request)

    async def answer_step(self, number: int, reply: JsonObject) -> None:
        """Make the reply durable."""
        await self.store.answer_step(self.run, number, reply)


def record_of(call: NodesCall | ExchangeCall | PlainExchangeCall, files: Mapping[str, ModelRef]) -> JsonObject:
    """A request as the journal keeps and compares it.

    files
        What the request names, by path.
    """
    match call:
        case NodesCall():
            return NODES_REQUEST
        case ExchangeCall():
            return exchange_record(call, None if call.model is None else files[call.model].sha256)
        case PlainExchangeCall():
            return plain_exchange_record(call, [(one, files[one.content].sha256) for one in call.questions])


def fold_rows(state: RunState, rows: Sequence[ExchangeRow]) -> None:
    """Take the exchanges of earlier steps into the state of their run."""
    for row in rows:
        state.count = max(state.count, row.exchange)
        if row.result is not None:
            state.take(StoredTask.model_validate(row.task), ExchangeOutcome.from_json(row.result))
        elif row.stage == UNMASK:
            state.take_open(StoredTask.model_validate(row.task))
    state.take_groups()
