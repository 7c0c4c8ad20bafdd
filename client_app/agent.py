"""The agent's loop: join, wait for tasks, take part, say that it is alive, and come back when the server does.

Beside it the owner's eligibility rules are watched: while one stands in the way the agent stays connected, tells the
server that it may not train, and leaves an exchange that it trains in.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from client_app.admission import withdrawal_for
from client_app.eligibility import NotEligible
from client_app.exchange import POLL_PAUSE, Client, exchange_path, take_part
from client_app.ledger import ExchangeId
from client_app.ranks.failures import AppFailed
from client_app.transport import LONG_POLL_SECONDS, ONCE
from fedcore.errors import (
    FedcoreError,
    ProtocolViolation,
    Refused,
    ServerUnreachable,
    Unauthorized,
)
from fedcore.system.concurrency import end, guarded
from fedcore.system.version import fedcore_version
from fedcore.wire import HeartbeatIn, JoinIn, JoinOut, Task, WithdrawalReason, WithdrawIn

HEARTBEAT_END_SECONDS: Final = 1.0
_HEARTBEAT_BOUNDS: Final = (0.2, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """How long the agent waits, in seconds.

    first, longest: between two attempts to reach a server that is away, doubling.
    refusal: after an exchange that it left by itself, so that a server that offers one bad task after the other does
    not get a busy loop out of it.
    farewell: for the server to take note that this client leaves an exchange; it may be gone itself.
    """

    first: float = 0.5
    longest: float = 15.0
    refusal: float = 1.0
    farewell: float = 3.0


@dataclass(slots=True)
class Agent:
    """One client of a federation, until it is cancelled.

    jitter: draws from [0, 1), so that the clients of a server that was away do not all come back at once.
    """

    client: Client
    pauses: Pauses = Pauses()
    jitter: Callable[[], float] = random.random
    _working_on: ExchangeId | None = field(default=None, init=False)
    _seen: ExchangeId | None = field(default=None, init=False)
    _joined: bool = field(default=False, init=False)
    _away: bool = field(default=False, init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Serve for ever; raises only what waiting cannot mend.

        That is what the first join shows to be wrong (kit, certificate, roster, clock), and a ledger that cannot grow.
        Later the same may be a server in the middle of a restart, so the agent keeps trying.
        """
        await self._check_eligibility()
        try:
            await guarded(self._stay(), self._watch_eligibility())
        except asyncio.CancelledError:
            await self._say_goodbye()
            raise

    async def _say_goodbye(self) -> None:
        """A server that does not know that this client stops would ask it, and wait for it in vain."""
        if self._joined and not self._away:
            with contextlib.suppress(FedcoreError, TimeoutError):
                async with asyncio.timeout(self.pauses.farewell):
                    await self.client.transport.send("POST", "/v1/heartbeat", HeartbeatIn(stopping=True), retry=ONCE)

    async def _stay(self) -> NoReturn:
        self._seen = self.client.ledger.last
        pause = self.pauses.first
        while True:
            try:
                heartbeat = await self._join()
                self._joined, pause = True, self.pauses.first
                await self._serve(heartbeat)
            except (ServerUnreachable, Refused, Unauthorized, ProtocolViolation) as error:
                if not (self._joined or _may_pass(error)):
                    raise
                self._note_away(error)
            await asyncio.sleep(pause * (0.5 + self.jitter()))
            pause = min(2 * pause, self.pauses.longest)

    async def _join(self) -> float:
        """Say who we are and which app is installed; returns the seconds between two signs of life."""
        client, kit = self.client, self.client.kit
        hello = JoinIn(app_sha256=client.app_sha256, version=fedcore_version(), eligible=client.eligibility.holds)
        joined = await client.transport.ask("POST", "/v1/join", hello, JoinOut, retry=ONCE)
        if joined.federation != kit.federation:
            raise ProtocolViolation(
                "federation-mismatch", f"the server serves {joined.federation!r}, this kit is of {kit.federation!r}"
            )
        if joined.roster_sha256 != kit.roster.hash().hex():
            raise ProtocolViolation(
                "roster-mismatch", "the server has another roster than this kit; ask the authority for the current one"
            )
        again = " again" if self._away else ""
        client.output.info("join", f"connected{again} to {kit.federation} at {client.transport.url}")
        self._away = False
        await self._leave_unfinished()
        return min(max(joined.heartbeat_seconds, _HEARTBEAT_BOUNDS[0]), _HEARTBEAT_BOUNDS[1])

    async def _leave_unfinished(self) -> None:
        """Drop out of an exchange that was left unfinished when this agent last ended."""
        exchange_id = self.client.ledger.open_exchange
        if exchange_id is None:
            return
        self.client.output.warning(
            "restart", f"leaving exchange {exchange_id[1]}, which an earlier start did not finish"
        )
        await self._withdraw(exchange_id, WithdrawIn(reason=WithdrawalReason.STOPPED, check="restarted"))
        self.client.ledger.leave(*exchange_id)

    async def _serve(self, heartbeat: float) -> None:
        leaving = asyncio.Event()
        alive = asyncio.create_task(self._heartbeat(heartbeat, leaving))
        try:
            while True:
                task = await self._next_task()
                if task is not None:
                    await self._take(task)
                else:
                    await asyncio.sleep(POLL_PAUSE)
        finally:
            # Not cancelled at once: httpx leaves a socket open when it is cancelled in the middle of a TLS handshake.
            leaving.set()
            self._news.set()
            await end(alive, within=HEARTBEAT_END_SECONDS)

    async def _next_task(self) -> Task | None:
        query: dict[str, str | int] = {"run": self._seen[0], "after": self._seen[1]} if self._seen else {}
        return await self.client.transport.get("/v1/task", Task, wait=LONG_POLL_SECONDS, retry=ONCE, **query)

    async def _take(self, task: Task) -> None:
        """Take part in one exchange; whatever goes wrong in it, the agent goes on."""
        exchange_id = (task.run, task.exchange)
        self._seen = self._working_on = exchange_id
        self.client.output.context = _context(task)
        try:
            await take_part(task, self.client)
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                await self._withdraw(exchange_id, WithdrawIn(reason=WithdrawalReason.STOPPED))
            raise
        except (FedcoreError, OSError) as error:
            self._report(error)
            if (withdrawal := withdrawal_for(error)) is not None:
                await self._withdraw(exchange_id, withdrawal)
                await asyncio.sleep(self.pauses.refusal)
        finally:
            self._working_on = None
            self.client.output.context = {}
            if self.client.ledger.open_exchange == exchange_id:
                self.client.ledger.leave(*exchange_id)

    def _report(self, error: FedcoreError | OSError) -> None:
        """Tell the owner why an exchange ended for this client."""
        output = self.client.output
        match error:
            case NotEligible():
                output.info("withdrawn", f"left the exchange, {error}")
            case ProtocolViolation():
                output.error("refused", f"refused: {error}", check=error.check)
            case Refused():
                output.warning("ended", f"the exchange ended for this client: {error}")
            case AppFailed(traceback=traceback):
                for line in traceback.rstrip().splitlines():
                    output.error("app", line)
                output.error("withdrawn", str(error))
            case _:
                output.error("withdrawn", str(error))

    async def _withdraw(self, exchange_id: ExchangeId, reason: WithdrawIn) -> None:
        """Tell the server, which would find out by itself, only later."""
        with contextlib.suppress(FedcoreError, TimeoutError):
            async with asyncio.timeout(self.pauses.farewell):
                await self.client.transport.send(
                    "POST", f"{exchange_path(*exchange_id)}/withdrawal", reason, retry=ONCE
                )

    async def _heartbeat(self, seconds: float, leaving: asyncio.Event) -> None:
        """Signs of life, one at once when there is news; a missed one is none, the next request tells of the server."""
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            self._news.clear()
            if leaving.is_set():
                return
            run, exchange = self._working_on or ("", 0)
            with contextlib.suppress(FedcoreError):
                message = HeartbeatIn(run=run, exchange=exchange, eligible=self.client.eligibility.holds)
                await self.client.transport.send("POST", "/v1/heartbeat", message, retry=ONCE)

    async def _watch_eligibility(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.client.eligibility.seconds)
            await self._check_eligibility()

    async def _check_eligibility(self) -> None:
        """Take a reading; tell the owner, and by the next heartbeat the server, what has changed."""
        if change := await self.client.eligibility.update():
            self.client.output.info("eligibility", change)
            self._news.set()

    def _note_away(self, error: FedcoreError) -> None:
        if not self._away:
            self.client.output.warning("away", f"{error}; trying again until that changes")
        self._away = True


def _may_pass(error: FedcoreError) -> bool:
    """Whether the same request may succeed later although nobody changes anything here."""
    return isinstance(error, ServerUnreachable) or (isinstance(error, Refused) and error.status >= 500)


def _context(task: Task) -> dict[str, object]:
    return {
        "run": task.run,
        "exchange": task.exchange,
        "round": task.server_round,
        "attempt": task.attempt,
        "aggregation": task.aggregation,
    }
