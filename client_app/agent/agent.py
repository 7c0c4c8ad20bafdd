"""The agent's loop: join, wait for tasks, take part, send heartbeats, and reconnect after an outage.

Meanwhile it watches the owner's eligibility rules: while one forbids training, the agent stays connected and tells the
server that it may not train. In an exchange that hides failures it waits for the end before it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NoReturn

from client_app.agent.app_updates import AppApproved, AppUpdater
from client_app.agent.background_training import do_work
from client_app.exchange.channel import POLL_PAUSE, exchange_path
from client_app.exchange.client import Client
from client_app.exchange.contribution import show_end, tells_failures
from client_app.exchange.exchange import take_part
from client_app.exchange.roster import agree, catch_up, learn
from client_app.exchange.task_reading import MAX_TASK_BYTES, TooManyTensors, UnreadableTask, read_task
from client_app.exchange.withdrawal import withdrawal_for
from client_app.http.retry import ONCE
from client_app.http.transport import LONG_POLL_SECONDS
from client_app.output import clean
from client_app.records.activity import ActivityFile, Doing
from client_app.records.ledger import ExchangeId
from fedcore.errors import (
    FedcoreError,
    NotAccepted,
    ProtocolViolation,
    Refused,
    ServerUnreachable,
    Unauthorized,
    WrongClock,
)
from fedcore.federation.kits.identity import next_identity
from fedcore.federation.roster import REVOKED, ROSTER_CHECKS
from fedcore.run.settings import ROUNDS_KEY
from fedcore.system.concurrency import end, guarded
from fedcore.wire.forms import OTHER_VERSION, our_version, refusal, understands
from fedcore.wire.presence import OFFERS_HEADER, WORK_HEADER, WORK_OVER, HeartbeatIn, JoinIn, JoinOut, WorkState
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

    client: Client
    pauses: Pauses = Pauses()
    jitter: Callable[[], float] = random.random
    """Draws from [0, 1), so that the clients of a server that was away do not all come back at once."""
    updater: AppUpdater | None = None
    """Downloads offered apps and switches to approved ones; None for neither."""
    _working_on: ExchangeId | None = field(default=None, init=False)
    _last_exchange: ExchangeId | None = field(default=None, init=False)
    _work: asyncio.Task[None] | None = field(default=None, init=False)
    """Trains in the background for a later sum."""
    _last_work: tuple[str, int] = field(default=("", 0), init=False)
    """The run and the version of the last background training."""
    _run_ended: bool = field(default=False, init=False)
    """Whether the run of that work has ended, as the server says."""
    _pending_withdrawal: tuple[ExchangeId, WithdrawIn] | None = field(default=None, init=False)
    """A withdrawal that did not reach the server, for the next contact."""
    _joined: bool = field(default=False, init=False)
    _away: bool = field(default=False, init=False)
    _last_refusal: str = field(default="", init=False)
    """The last answer in the log that keeps this client from taking part."""
    _heartbeat_due: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _hides_state: bool = field(default=False, init=False)
    """Whether the open exchange hides this machine's state from the server."""
    _run: str = field(default="", init=False)
    """The last run in the log."""
    _activity: ActivityFile = field(init=False)

    def __post_init__(self) -> None:
        self._activity = ActivityFile(self.client.state_dir)

    async def run(self) -> None:
        """Serve for ever; raises only errors that waiting cannot fix.

        These are what the first join finds wrong (kit, certificate, roster, clock), and a ledger that cannot grow.
        Later the same errors may come from a server that is restarting, so the agent keeps trying.
        """
        await self._check_eligibility()
        try:
            await guarded(self._stay(), self._watch_eligibility())
        except asyncio.CancelledError:
            await self._stop_work()
            await self._say_goodbye()
            raise
        finally:
            await self._stop_work()
            self._activity.note("stopped")

    async def _say_goodbye(self) -> None:
        """Tell the server that this client stops, so that it does not wait for it."""
        if self._joined and not self._away:
            with contextlib.suppress(FedcoreError, TimeoutError):
                async with asyncio.timeout(self.pauses.farewell):
                    await self.client.transport.send("POST", "/v1/heartbeat", HeartbeatIn(stopping=True), retry=ONCE)

    async def _stay(self) -> NoReturn:
        self._last_exchange = self.client.ledger.last
        pause = self.pauses.first
        while True:
            try:
                heartbeat = await self._join()
                self._joined, pause = True, self.pauses.first
                await self._serve(heartbeat)
            except (ServerUnreachable, Refused, Unauthorized, ProtocolViolation) as error:
                if _is_revocation(error) or not (self._joined or _may_pass(error)):
                    raise
                self._note_away(error)
            await asyncio.sleep(pause * (0.5 + self.jitter()))
            pause = min(2 * pause, self.pauses.longest)

    async def _join(self) -> float:
        """Announce this client and its app; returns the seconds between two heartbeats."""
        joined = await self._introduce()
        kit = self.client.kit
        if not understands(joined.version):
            raise ProtocolViolation(OTHER_VERSION, refusal(server=joined.version, client=our_version()))
        if joined.federation != kit.federation:
            raise ProtocolViolation(
                "federation-mismatch", f"the server serves {joined.federation!r}, this kit is of {kit.federation!r}"
            )
        client = self.client = await agree(self.client, joined)
        again = " again" if self._away and self._joined else ""
        client.output.info("join", f"connected{again} to {kit.federation} at {client.transport.url}")
        self._away, self._last_refusal = False, ""
        self._note_idle()
        await self._leave_unfinished()
        return min(max(joined.heartbeat_seconds, _HEARTBEAT_BOUNDS[0]), _HEARTBEAT_BOUNDS[1])

    async def _introduce(self) -> JoinOut:
        client = self.client
        hello = JoinIn(
            app_sha256=client.app_sha256,
            version=our_version(),
            eligible=client.eligibility.holds,
            reports_failures=client.kit.policy.report_failures,
            work=client.pending.status_message(),
        )
        try:
            return await client.transport.ask("POST", "/v1/join", hello, JoinOut, retry=ONCE)
        except Refused as refused:
            if refused.kind != ProblemKind.MALFORMED:
                raise
            raise ProtocolViolation(OTHER_VERSION, refusal(server="", client=our_version())) from refused
        except Unauthorized:
            if next_identity(client.kit.folder) is None:
                raise
        self.client = await learn(client)
        return await client.transport.ask("POST", "/v1/join", hello, JoinOut, retry=ONCE)

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
        """Do what the server asks, until this client has to join again."""
        leaving = asyncio.Event()
        alive = asyncio.create_task(self._heartbeat(heartbeat, leaving))
        interruptions = self.client.transport.interruptions
        try:
            # A server that was away in an exchange may be another one, or a new one, that has met nobody yet.
            while self.client.transport.interruptions == interruptions:
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
                    await (self.take_part(task) if task.version is None else self._begin_work(task))
                    continue
                if self._run_ended:
                    await self._end_work()
                if self.updater is not None:
                    await self.updater.fetch_offer(self.client)
                await asyncio.sleep(POLL_PAUSE)
        finally:
            # Not cancelled at once: httpx leaves a socket open when it is cancelled in the middle of a TLS handshake.
            leaving.set()
            self._heartbeat_due.set()
            await end(alive, within=HEARTBEAT_END_SECONDS)

    async def _switch_app(self) -> bool:
        """Switch to the app that the owner approved; True if this client has to join again."""
        assert self.updater is not None  # noqa: S101 - only it raises AppApproved
        before, self.client = self.client, await self.updater.switch_app(self.client)
        return self.client is not before

    async def _next_task(self) -> Task | None:
        """The next task, or None; raises AppApproved when the owner approves another app."""
        if self.updater is None or self.client.pending.training is not None:
            return await self._poll()
        return await guarded(self._poll(), self.updater.wait_for_approval(self.client))

    def _read_headers(self, headers: Mapping[str, str]) -> None:
        self._run_ended = headers.get(WORK_HEADER) == WORK_OVER
        if self.updater is not None:
            self.updater.note_offers(headers.get(OFFERS_HEADER, ""))

    async def _poll(self) -> Task | None:
        query: dict[str, str | int] = (
            {"run": self._last_exchange[0], "after": self._last_exchange[1]} if self._last_exchange else {}
        )
        if self._last_work[0]:
            query |= {"work": self._last_work[0], "version": self._last_work[1]}
        return await self.client.transport.get(
            "/v1/task",
            Task,
            wait=LONG_POLL_SECONDS,
            retry=ONCE,
            limit=MAX_TASK_BYTES,
            read=partial(read_task, max_tensors=self.client.kit.policy.max_tensors),
            on_headers=self._read_headers,
            **query,
        )

    async def take_part(self, task: Task, unread: ProtocolViolation | None = None) -> None:
        """Take part in one exchange; an error ends the exchange and not the agent.

        Args:
            task: what the server asks for.
            unread: why this client cannot take part, if the task was not read to its end.
        """
        exchange_id = (task.run, task.exchange)
        self._last_exchange = self._working_on = exchange_id
        self.client.pending.evict_for(task)
        self._hides_state = self.client.eligibility.holds and not tells_failures(task, self.client.kit.policy)
        before = replace(self.client.transport.traffic)
        self.client.output.context = _context(task)
        where: dict[str, str | int] = {"run": task.run, "exchange": task.exchange, "server_round": task.server_round}
        if task.run != self._run:
            self._run = task.run
            self.client.output.info("run", f"run {task.run}, {task.aggregation}, app {task.app_sha256[:12]}")
        self._activity.note("taking part", message_type=task.message_type, server=self.client.transport.url, **where)
        try:
            self.client = await catch_up(self.client, task.roster)
            await take_part(task, self.client, unread)
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                await self._withdraw(exchange_id, WithdrawIn(reason=WithdrawalReason.STOPPED))
            raise
        except (FedcoreError, OSError) as error:
            show_end(self.client.output, error)
            if _is_revocation(error):
                raise
            if (withdrawal := withdrawal_for(error)) is not None:
                if not isinstance(error, ServerUnreachable | Unauthorized):
                    check = withdrawal.check or withdrawal.reason.value
                    self.client.ledger.refuse(*exchange_id, check, withdrawal.subject)
                await self._withdraw(exchange_id, withdrawal)
                await asyncio.sleep(self.pauses.refusal)
        finally:
            self._working_on = None
            self.client.output.context = {}
            self._stop_hiding()
            if self.client.ledger.open_exchange == exchange_id:
                traffic = self.client.transport.traffic
                up, down = traffic.up - before.up, traffic.down - before.down
                self.client.ledger.leave(*exchange_id, up=up, down=down)
            self._note_idle()

    async def _decline(self, unread: UnreadableTask) -> None:
        """Tell the server that this client does not understand a task, which it would otherwise wait for."""
        self._last_exchange = unread.exchange_id
        show_end(self.client.output, unread)
        if (withdrawal := withdrawal_for(unread)) is not None:
            await self._withdraw(unread.exchange_id, withdrawal)
        await asyncio.sleep(self.pauses.refusal)

    async def _begin_work(self, task: Task) -> None:
        """Train for a later sum in the background; this replaces the training before."""
        assert task.version is not None  # noqa: S101 - the task of a piece of work
        before, self._last_work = self.client.pending.status_message(), (task.run, task.version.number)
        await self._stop_work()
        if before is not None:
            what = "stopped training" if before.state is WorkState.TRAINING else "discarded the update trained"
            text = f"{what} on version {before.version.number}: superseded by newer work"
            self.client.output.info("work", text)
        try:
            self.client = await catch_up(self.client, task.roster)
        except FedcoreError as error:  # the check of the roster fails too, and the server learns of it
            self.client.output.warning("work", str(error))
        self._work = asyncio.create_task(self._do_work(task))

    async def _do_work(self, task: Task) -> None:
        self._note_idle(task)
        try:
            status = await do_work(task, self.client)
        finally:
            self._note_idle()
        if not self.client.eligibility.holds:
            self._heartbeat_due.set()
        with contextlib.suppress(FedcoreError):  # the next join repeats it
            await self.client.transport.send("PUT", "/v1/work", status)

    async def _end_work(self) -> None:
        """Stop the training for a run that has ended."""
        if self.client.pending.training is not None:
            await self._stop_work()
            self.client.output.info("work", f"stopped training: run {self._last_work[0]} has ended")
            if not self.client.eligibility.holds:
                self._heartbeat_due.set()

    async def _stop_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            await end(work)

    async def _withdraw(self, exchange_id: ExchangeId, reason: WithdrawIn) -> None:
        """Tell the server, or the next one that answers, which would otherwise find out later."""
        self._pending_withdrawal = (exchange_id, reason)
        path = f"{exchange_path(*exchange_id)}/withdrawal"
        with contextlib.suppress(FedcoreError, TimeoutError):
            try:
                async with asyncio.timeout(self.pauses.farewell):
                    await self.client.transport.send("POST", path, reason, retry=ONCE)
            except Refused as refused:
                if refused.status >= 500:
                    return
            self._pending_withdrawal = None

    async def _heartbeat(self, seconds: float, leaving: asyncio.Event) -> None:
        """Send heartbeats, one at once when there is news. A lost one does no harm: the next request shows the outage.

        Between two exchanges only news is sent: the open poll for a task shows that the client is alive.
        """
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._heartbeat_due.wait()
            if leaving.is_set():
                return
            if self._working_on is None and not self._heartbeat_due.is_set():
                continue
            self._heartbeat_due.clear()
            run, exchange = self._working_on or ("", 0)
            with contextlib.suppress(FedcoreError):
                eligible = self._is_hiding or self.client.eligibility.holds
                received = self.client.transport.received if self._working_on else None
                message = HeartbeatIn(run=run, exchange=exchange, eligible=eligible, received=received)
                await self.client.transport.send("POST", "/v1/heartbeat", message, retry=ONCE)

    async def _watch_eligibility(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.client.eligibility.seconds)
            await self._check_eligibility()

    async def _check_eligibility(self) -> None:
        """Take a reading and log a change; the next heartbeat tells the server, unless the exchange hides it."""
        if change := await self.client.eligibility.update():
            self.client.output.info("eligibility", change)
            if self._joined:
                self._note_idle()
            if not self._is_hiding:
                self._heartbeat_due.set()

    @property
    def _is_hiding(self) -> bool:
        """Whether the running local work hides this machine's state from the server."""
        training = self.client.pending.training
        return self._hides_state or (training is not None and not tells_failures(training, self.client.kit.policy))

    def _stop_hiding(self) -> None:
        if self._hides_state and not self.client.eligibility.holds:
            self._heartbeat_due.set()
        self._hides_state = False

    def _note_idle(self, work: Task | None = None) -> None:
        """Write down what the agent does between exchanges.

        Args:
            work: the task that it starts to train for in the background, if any.
        """
        if self._working_on is not None or self._away:
            return  # the exchange, or the outage, is the news
        why, work = self.client.eligibility.reason, work or self.client.pending.training
        doing: Doing = "not eligible" if why else "training" if work is not None else "waiting"
        run = work.run if work is not None else ""
        self._activity.note(doing, why=why, run=run, server=self.client.transport.url)

    def _note_away(self, error: FedcoreError) -> None:
        answer = _answer_of(error)
        if not self._away or answer not in ("", self._last_refusal):
            self._activity.note("away", why=clean(str(error)), server=self.client.transport.url)
            text = f"{error}{_remedy(error, joined=self._joined)}; trying again until that changes"
            if isinstance(error, ProtocolViolation):
                self.client.output.error("refused", f"refused, taking part in nothing: {text}", check=error.check)
            else:
                self.client.output.warning("away", text)
        self._away, self._last_refusal = True, answer or self._last_refusal


def _may_pass(error: FedcoreError) -> bool:
    """Whether the same request may succeed later without a change on this machine.

    So it may if the server's roster does not follow the one known here, or does not admit this client yet: the server's
    owner can correct that, and a restart of this agent would change nothing.
    """
    if isinstance(error, ProtocolViolation):
        return error.check in ROSTER_CHECKS
    waits = isinstance(error, ServerUnreachable | WrongClock | NotAccepted)
    return waits or (isinstance(error, Refused) and error.status >= 500)


def _answer_of(error: FedcoreError) -> str:
    """The kind of an answer that somebody has to act on; "" if no server answered, or one that does not serve now.

    The log has each kind once, also after an outage: a server may come back without knowing this client.
    """
    match error:
        case ProtocolViolation(check=check):
            return check
        case Refused(status=status, kind=kind):
            return kind if status < 500 else ""
        case Unauthorized():
            return type(error).__name__
    return ""


def _remedy(error: FedcoreError, *, joined: bool) -> str:
    """What to do if the server does not accept a client that it never saw."""
    if joined or not isinstance(error, NotAccepted):
        return ""
    return (
        ". If this client was admitted only now, the federation's operator has yet to publish the roster that names it "
        "(fedcore federation publish)"
    )


def _is_revocation(error: FedcoreError | OSError) -> bool:
    """Whether this client was revoked, which is final."""
    if isinstance(error, ProtocolViolation):
        return error.check == REVOKED
    return isinstance(error, Refused) and error.kind == ProblemKind.REVOKED


def _context(task: Task) -> dict[str, object]:
    return {
        "run": task.run,
        "exchange": task.exchange,
        "round": task.server_round,
        "rounds": task.run_config.get(ROUNDS_KEY, 0),
        "attempt": task.attempt,
        "aggregation": task.aggregation,
    }
