"""The agent's loop: join, wait for tasks, take part, and reconnect after an outage."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Final, NoReturn

from client_app.agent.app_updates import AppApproved, AppUpdater
from client_app.agent.background_training import BackgroundTraining
from client_app.agent.presence import AgentPresence
from client_app.agent.server_errors import is_revocation, may_pass
from client_app.exchange.channel import POLL_PAUSE, exchange_path
from client_app.exchange.client import Client
from client_app.exchange.contribution import show_end
from client_app.exchange.exchange import take_part
from client_app.exchange.roster import agree, catch_up, learn
from client_app.exchange.task_reading import MAX_TASK_BYTES, TooManyTensors, UnreadableTask, read_task
from client_app.exchange.withdrawal import withdrawal_for
from client_app.http.errors import is_for_now
from client_app.http.retry import ONCE
from client_app.http.transport import LONG_POLL_SECONDS
from client_app.records.ledger import ExchangeId
from fedcore.errors import FedcoreError, ProtocolViolation, Refused, ServerUnreachable, Unauthorized
from fedcore.federation.kits.identity import next_identity
from fedcore.system.concurrency import end, guarded
from fedcore.wire.forms import OTHER_VERSION, our_version, refusal, understands
from fedcore.wire.presence import MOST_SIGNED, OFFERS_HEADER, WORK_HEADER, WORK_OVER, HeartbeatIn, JoinIn, JoinOut
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason, WithdrawIn

HEARTBEAT_END_SECONDS: Final = 1.0
_HEARTBEAT_BOUNDS: Final = (0.2, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """How long the agent waits, in seconds."""

    first: float = 0.5
    """After the first attempt to reach a server that is away; it doubles with each further one."""
    longest: float = 15.0
    refusal: float = 1.0
    """After an exchange that it left, so that a server with one bad task after another causes no busy loop."""
    farewell: float = 3.0
    """For the server to note that this client leaves; the server may be away itself."""


@dataclass(slots=True)
class Agent:
    """One client of a federation, until it is cancelled."""

    client: InitVar[Client]
    pauses: Pauses = Pauses()
    jitter: Callable[[], float] = random.random
    """Draws from [0, 1), so that the clients of a server that was away do not all come back at once."""
    updater: AppUpdater | None = None
    """Downloads offered apps and switches to approved ones; None for neither."""
    _presence: AgentPresence = field(init=False)
    _background: BackgroundTraining = field(init=False)
    _last_exchange: ExchangeId | None = field(default=None, init=False)
    _pending_withdrawal: tuple[ExchangeId, WithdrawIn] | None = field(default=None, init=False)
    """A withdrawal that did not reach the server, for the next contact."""
    _before_task: tuple[int, int] | None = field(default=None, init=False)
    """The bytes sent and received before the last request for a task, which belongs to the traffic of the task."""

    def __post_init__(self, client: Client) -> None:
        self._presence = AgentPresence(client)
        self._background = BackgroundTraining(self._presence)

    @property
    def _client(self) -> Client:
        return self._presence.client

    async def run(self) -> None:
        """Serve for ever; raises only errors that waiting cannot fix.

        These are what the first join finds wrong (kit, certificate, roster, clock), and a ledger that cannot grow.
        Later the same errors may come from a server that is restarting, so the agent keeps trying.
        """
        await self._presence.check_eligibility()
        why = ""
        try:
            await guarded(self._stay(), self._presence.watch_eligibility())
        except asyncio.CancelledError:
            await self._background.stop()
            await self._say_goodbye()
            raise
        except FedcoreError as error:
            why = str(error)
            raise
        finally:
            await self._background.stop()
            self._presence.note_stopped(why)

    async def _say_goodbye(self) -> None:
        """Tell the server that this client stops, so that it does not wait for it."""
        if self._presence.joined and not self._presence.away:
            with contextlib.suppress(FedcoreError, TimeoutError):
                async with asyncio.timeout(self.pauses.farewell):
                    await self._client.transport.send("POST", "/v1/heartbeat", HeartbeatIn(stopping=True), retry=ONCE)

    async def _stay(self) -> NoReturn:
        self._last_exchange = self._client.ledger.last
        pause = self.pauses.first
        while True:
            try:
                heartbeat = await self._join()
                self._presence.joined, pause = True, self.pauses.first
                await self._serve(heartbeat)
            except (ServerUnreachable, Refused, Unauthorized, ProtocolViolation) as error:
                if is_revocation(error) or not (self._presence.joined or may_pass(error)):
                    raise
                self._presence.note_away(error)
            await asyncio.sleep(pause * (0.5 + self.jitter()))
            pause = min(2 * pause, self.pauses.longest)

    async def _join(self) -> float:
        """Announce this client and its app; returns the seconds between two heartbeats."""
        joined = await self._introduce()
        kit = self._client.kit
        if not understands(joined.version):
            raise ProtocolViolation(OTHER_VERSION, refusal(server=joined.version, client=our_version()))
        if joined.federation != kit.federation:
            raise ProtocolViolation(
                "federation-mismatch", f"the server serves {joined.federation!r}, this kit is of {kit.federation!r}"
            )
        self._presence.client = await agree(self._client, joined)
        self._presence.connect()
        await self._leave_unfinished()
        return min(max(joined.heartbeat_seconds, _HEARTBEAT_BOUNDS[0]), _HEARTBEAT_BOUNDS[1])

    async def _introduce(self) -> JoinOut:
        client = self._client
        hello = JoinIn(
            app_sha256=client.app_sha256,
            version=our_version(),
            eligible=client.eligibility.holds,
            reports_failures=client.kit.policy.report_failures,
            work=client.pending.status_message(),
            head=client.transcript.chain.head,
            signed=dict(list(client.transcript.signed.items())[-MOST_SIGNED:]) or None,
        )
        try:
            return await client.transport.ask("POST", "/v1/join", hello, JoinOut, retry=ONCE)
        except Refused as refused:
            if refused.kind == ProblemKind.OTHER_TRANSCRIPT:
                raise client.transcript.lost_records() from refused
            if refused.kind != ProblemKind.MALFORMED:
                raise
            raise ProtocolViolation(OTHER_VERSION, refusal(server="", client=our_version())) from refused
        except Unauthorized:
            if next_identity(client.kit.folder) is None:
                raise
        self._presence.client = await learn(client)
        return await client.transport.ask("POST", "/v1/join", hello, JoinOut, retry=ONCE)

    async def _leave_unfinished(self) -> None:
        """Drop out of an exchange that was left unfinished when this agent last ended."""
        exchange_id = self._client.ledger.open_exchange
        if exchange_id is None:
            return
        self._client.output.warning(
            "restart", f"leaving exchange {exchange_id[1]}, which an earlier start did not finish"
        )
        await self._withdraw(exchange_id, WithdrawIn(reason=WithdrawalReason.STOPPED, check="restarted"))
        self._client.ledger.leave(*exchange_id)

    async def _serve(self, heartbeat: float) -> None:
        """Do what the server asks, until this client has to join again."""
        leaving = asyncio.Event()
        alive = asyncio.create_task(self._presence.send_heartbeats(heartbeat, leaving))
        interruptions = self._client.transport.interruptions
        try:
            # A server that was away in an exchange may be another one, or a new one, that has met nobody yet.
            while self._client.transport.interruptions == interruptions:
                if self._pending_withdrawal is not None:
                    await self._withdraw(*self._pending_withdrawal)
                try:
                    task = await self._next_task()
                except TooManyTensors as unread:
                    await self.take_part(unread.task, unread)
                    continue
                except UnreadableTask as unread:
                    await self._decline(unread)
                    continue
                except AppApproved:
                    if await self._switch_app():
                        return
                    continue
                if task is not None:
                    await (self.take_part(task) if task.version is None else self._background.begin(task))
                    continue
                if self._background.run_ended:
                    await self._background.end()
                if self.updater is not None:
                    await self.updater.fetch_offer(self._client)
                await asyncio.sleep(POLL_PAUSE)
        finally:
            # Not cancelled at once: httpx leaves a socket open when it is cancelled in the middle of a TLS handshake.
            leaving.set()
            self._presence.heartbeat_due.set()
            await end(alive, within=HEARTBEAT_END_SECONDS)

    async def _switch_app(self) -> bool:
        """Switch to the app that the owner approved; True if this client has to join again."""
        assert self.updater is not None  # noqa: S101 - only it raises AppApproved
        before = self._client
        self._presence.client = await self.updater.switch_app(before)
        return self._client is not before

    async def _next_task(self) -> Task | None:
        """The next task, or None; raises AppApproved when the owner approves another app."""
        if self.updater is None or self._client.pending.training is not None:
            return await self._poll()
        return await guarded(self._poll(), self.updater.wait_for_approval(self._client))

    def _read_headers(self, headers: Mapping[str, str]) -> None:
        self._background.run_ended = headers.get(WORK_HEADER) == WORK_OVER
        if self.updater is not None:
            self.updater.note_offers(headers.get(OFFERS_HEADER, ""))

    async def _poll(self) -> Task | None:
        query: dict[str, str | int] = (
            {"run": self._last_exchange[0], "after": self._last_exchange[1]} if self._last_exchange else {}
        )
        if self._background.last[0]:
            query |= {"work": self._background.last[0], "version": self._background.last[1]}
        if line := self._client.transport.line.to_query():
            query["line"] = line  # an older server does not read it
        traffic = self._client.transport.traffic
        self._before_task = traffic.up, traffic.down
        return await self._client.transport.get(
            "/v1/task",
            Task,
            wait=LONG_POLL_SECONDS,
            retry=ONCE,
            limit=MAX_TASK_BYTES,
            read=partial(read_task, max_tensors=self._client.kit.policy.max_tensors),
            on_headers=self._read_headers,
            **query,
        )

    async def take_part(self, task: Task, unread: ProtocolViolation | None = None) -> None:
        """Take part in one exchange; an error ends the exchange and not the agent.

        Args:
            task: what the server asks for.
            unread: why this client cannot take part, if the task was not read to its end.
        """
        exchange_id = self._last_exchange = (task.run, task.exchange)
        self._client.pending.evict_for(task)
        traffic = self._client.transport.traffic
        up, down = self._before_task or (traffic.up, traffic.down)
        self._presence.begin(task)
        try:
            self._presence.client = await catch_up(self._client, task.roster)
            await take_part(task, self._client, unread)
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                await self._withdraw(exchange_id, WithdrawIn(reason=WithdrawalReason.STOPPED))
            raise
        except (FedcoreError, OSError) as error:
            await self._leave(exchange_id, error)
        finally:
            self._presence.end()
            self._client.ledger.leave(*exchange_id, up=traffic.up - up, down=traffic.down - down)
            self._presence.note_idle()

    async def _leave(self, exchange_id: ExchangeId, error: FedcoreError | OSError) -> None:
        """Log why an exchange ended for this client, and withdraw from it; raises the error if it is final."""
        show_end(self._client.output, error)
        if is_revocation(error):
            raise error
        if (withdrawal := withdrawal_for(error)) is not None:
            if not isinstance(error, ServerUnreachable | Unauthorized):
                check = withdrawal.check or withdrawal.reason.value
                self._client.ledger.refuse(*exchange_id, check, withdrawal.subject)
            await self._withdraw(exchange_id, withdrawal)
            await asyncio.sleep(self.pauses.refusal)

    async def _decline(self, unread: UnreadableTask) -> None:
        """Tell the server that this client does not understand a task, which it would otherwise wait for."""
        self._last_exchange = unread.exchange_id
        show_end(self._client.output, unread)
        if (withdrawal := withdrawal_for(unread)) is not None:
            await self._withdraw(unread.exchange_id, withdrawal)
        await asyncio.sleep(self.pauses.refusal)

    async def _withdraw(self, exchange_id: ExchangeId, reason: WithdrawIn) -> None:
        """Tell the server, or the next one that answers, which would otherwise find out later."""
        self._pending_withdrawal = (exchange_id, reason)
        path = f"{exchange_path(*exchange_id)}/withdrawal"
        with contextlib.suppress(FedcoreError, TimeoutError):
            try:
                async with asyncio.timeout(self.pauses.farewell):
                    await self._client.transport.send("POST", path, reason, retry=ONCE)
            except Refused as refused:
                if is_for_now(refused):
                    return
            self._pending_withdrawal = None
