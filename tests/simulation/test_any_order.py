"""One exchange under generated schedules: every message early, again, or with other content, and kills in between.

Whatever the order, a message that was answered before changes nothing, other content in its place is refused, everybody
is told the same by whichever process, and the exchange ends: with the exact sum of its survivors, or a named failure.
All of it over SQLite and over PostgreSQL.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.dying import Gone
from support.mortal import Party, Rig, rig
from support.postgres import new_database, postgres
from support.services import federation

from fedcore.errors import FedcoreError
from fedcore.federation import FederationFolder
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.wire.base import Message
from fedcore.wire.secagg import ConsistencyIn, UnmaskIn
from fedcore.wire.uploads import WithdrawalReason, WithdrawIn

__all__ = ["federation", "new_database", "postgres"]

CLIENTS = (1, 2, 3, 4)
STEPS = ("advertise", "share", "upload", "sign", "unmask")
QUORUM = 3
ACTS = (
    "go on", "go on", "go on", "go on", "repeat", "contradict", "jump ahead", "wait", "leave",
    "kill", "kill before", "kill after",
)  # fmt: skip
OTHER: dict[str, Message] = {
    "consistency": ConsistencyIn(signature=bytes(64)),
    "unmask": UnmaskIn(self_shares=b"", key_shares=b""),
}
"""Other content for a step, which no honest client sends."""

Schedule = list[tuple[str, int]]
schedules = st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(CLIENTS)), max_size=60)


class Play:
    """Clients that do what a schedule says, each one step at a time."""

    def __init__(self, here: Rig) -> None:
        self.here = here
        self.parties = {client: Party(here, client) for client in CLIENTS}
        self.steps = dict.fromkeys(CLIENTS, 0)
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.sent: dict[int, tuple[str, Message]] = {}
        self.left: set[int] = set()
        self.taken: list[str] = []
        self._send, here.send = here.send, self.send  # type: ignore[method-assign]

    async def send(self, step: str, client: int, body: Message) -> None:
        await self._send(step, client, body)
        self.sent[client] = (step, body)

    async def act(self, what: str, client: int) -> None:
        life = self.here.lives[-1]
        if what == "kill":
            life.dead.set()
        elif what in ("kill before", "kill after"):  # the next write
            life.writes = life.count + (what == "kill after")
        elif what == "wait":
            await asyncio.sleep(0.01)
        elif what == "go on":
            self.go_on(client)
        elif what == "leave" and client not in self.left and len(self.left) < 2:
            self.left.add(client)
            await self.attempt("withdrawal", client, WithdrawIn(reason=WithdrawalReason.STOPPED))
        elif what == "repeat" and client in self.sent:
            await self.attempt(*self.named(client), self.sent[client][1])
        elif what == "contradict" and client in self.sent and self.sent[client][0] in OTHER:
            step = self.sent[client][0]
            if await self.attempt(step, client, OTHER[step]):
                self.taken.append(f"other content in place of client {client}'s {step}")
        elif what == "jump ahead" and self.steps[client] < 2 and await self.attempt("unmask", client, OTHER["unmask"]):
            self.taken.append(f"client {client}'s unmask, ahead of time")
        await asyncio.sleep(0)

    def named(self, client: int) -> tuple[str, int]:
        return self.sent[client][0], client

    def go_on(self, client: int) -> None:
        """The next step, unless the last one still waits for the others."""
        busy = client in self.tasks and not self.tasks[client].done()
        if busy or client in self.left or self.steps[client] == len(STEPS):
            return
        step = getattr(self.parties[client], STEPS[self.steps[client]])
        self.steps[client] += 1
        self.tasks[client] = asyncio.create_task(step())

    async def attempt(self, step: str, client: int, body: Message) -> bool:
        """Send something that may be refused; whether it was taken."""
        try:
            await self._send(step, client, body)
        except (FedcoreError, Gone):
            return False
        return True

    async def to_the_end(self, leading: asyncio.Task[ExchangeOutcome]) -> ExchangeOutcome:
        """Everybody who is left goes on until the exchange has ended."""
        while not leading.done():
            for client in CLIENTS:
                self.go_on(client)
            await asyncio.sleep(0.002)
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        return leading.result()


async def play(
    federation: FederationFolder, folder: Path, database: str, schedule: Schedule
) -> tuple[ExchangeOutcome, Play]:
    async with rig(federation, folder, database=database) as here:
        leading = asyncio.create_task(here.lead(None))
        while not here.lives or here.lives[-1].exchange is None:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0)
        made = Play(here)
        for what, client in schedule:
            await made.act(what, client)
        return await made.to_the_end(leading), made


@given(schedules)
def test_any_order_ends_with_the_exact_sum_or_a_named_failure(
    federation: FederationFolder, new_database: Callable[[], str], schedule: Schedule
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        end, made = asyncio.run(play(federation, Path(folder), new_database(), schedule))
    assert made.here.witness.equivocations == []
    assert made.taken == []
    if end.failure is not None:
        assert end.total is None
        assert len(made.left) > len(CLIENTS) - QUORUM, end.failure
        return
    assert end.total is not None
    assert end.total.examples == sum(4 ** (client - 1) for client in end.survivors)
    assert set(CLIENTS) - made.left <= set(end.survivors), "whoever stayed is in the sum"
