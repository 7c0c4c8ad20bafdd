"""The agent's loop: join, wait for tasks, take part, say that it is alive, and come back when the server does.

Beside it the owner's eligibility rules are watched: while one stands in the way the agent stays connected and tells the
server that it may not train; during an exchange in which failures are not told, only after it.
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
from client_app.agent.client import Client
from client_app.agent.contribution import show_end, tells_failures
from client_app.agent.withdrawal import withdrawal_for
from client_app.exchange.exchange import POLL_PAUSE, exchange_path, take_part
from client_app.exchange.roster import agree, catch_up, learn
from client_app.exchange.task_reading import MAX_TASK_BYTES, TooManyTensors, UnreadableTask, read_task
from client_app.http.retry import ONCE
from client_app.http.transport import LONG_POLL_SECONDS
from client_app.output import clean
from client_app.owner.now import Doing, NowFile
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
from fedcore.wire.control import (
    OFFERS_HEADER,
    WORK_HEADER,
    WORK_OVER,
    HeartbeatIn,
    JoinIn,
    JoinOut,
    ProblemKind,
    Task,
    WithdrawalReason,
    WithdrawIn,
    WorkState,
)
from fedcore.wire.forms import OTHER_VERSION, our_version, refusal, understands

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

    jitter: draws from [0, 1), so that the clients of a server that was away do not all come back at once. follower:
    keeps the apps that are offered and takes up those that the owner approves; None for neither.
    """

    client: Client
    pauses: Pauses = Pauses()
    jitter: Callable[[], float] = random.random
    follower: AppUpdater | None = None
    _working_on: ExchangeId | None = field(default=None, init=False)
    _seen: ExchangeId | None = field(default=None, init=False)
    _work: asyncio.Task[None] | None = field(default=None, init=False)
    """What trains for a later sum, beside all else."""
    _worked: tuple[str, int] = field(default=("", 0), init=False)
    """The run and the version of the last work that was taken."""
    _over: bool = field(default=False, init=False)
    """Whether the run of that work has ended, as the server says."""
    _owed: tuple[ExchangeId, WithdrawIn] | None = field(default=None, init=False)
    """A withdrawal that the server did not get to hear, for the next contact."""
    _joined: bool = field(default=False, init=False)
    _away: bool = field(default=False, init=False)
    _told: str = field(default="", init=False)
    """Which answer the owner has read of, that keeps this client from taking part."""
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _silent: bool = field(default=False, init=False)
    """Whether an exchange goes on during which the server is told nothing of this machine's state."""
    _run: str = field(default="", init=False)
    """The run that the owner was told of last."""
    _now: NowFile = field(init=False)

    def __post_init__(self) -> None:
        self._now = NowFile(self.client.state_dir)

    async def run(self) -> None:
        """Serve for ever; raises only what waiting cannot mend.

        That is what the first join shows to be wrong (kit, certificate, roster, clock), and a ledger that cannot grow.
        Later the same may be a server in the middle of a restart, so the agent keeps trying.
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
            self._now.note("stopped")

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
                if _is_revocation(error) or not (self._joined or _may_pass(error)):
                    raise
                self._note_away(error)
            await asyncio.sleep(pause * (0.5 + self.jitter()))
            pause = min(2 * pause, self.pauses.longest)

    async def _join(self) -> float:
        """Say who we are and which app is installed; returns the seconds between two signs of life."""
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
        self._away, self._told = False, ""
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
        """Take part in what is asked, until the server has to be told anew who this is."""
        leaving = asyncio.Event()
        alive = asyncio.create_task(self._heartbeat(heartbeat, leaving))
        interruptions = self.client.transport.interruptions
        try:
            # A server that was away in an exchange may be another one, or a new one, that has met nobody yet.
            while self.client.transport.interruptions == interruptions:
                if self._owed is not None:
                    await self._withdraw(*self._owed)
                try:
                    task = await self._next_task()
                except TooManyTensors as unread:
                    await self.take_part(unread.task, unread)
                    continue
                except UnreadableTask as unread:
                    await self._decline(unread)
                    continue
                except AppApproved:
                    if await self._take_up_app():
                        return
                    continue
                if task is not None:
                    await (self.take_part(task) if task.version is None else self._begin_work(task))
                    continue
                if self._over:
                    await self._end_work()
                if self.follower is not None:
                    await self.follower.keep_offer(self.client)
                await asyncio.sleep(POLL_PAUSE)
        finally:
            # Not cancelled at once: httpx leaves a socket open when it is cancelled in the middle of a TLS handshake.
            leaving.set()
            self._news.set()
            await end(alive, within=HEARTBEAT_END_SECONDS)

    async def _take_up_app(self) -> bool:
        """Go over to the app that the owner approved; whether the server has to be told."""
        assert self.follower is not None  # noqa: S101 - who says that an app is approved
        before, self.client = self.client, await self.follower.take_up(self.client)
        return self.client is not before

    async def _next_task(self) -> Task | None:
        """The next task, None where there is none for now; raises Approved where the owner approved another app."""
        if self.follower is None or self.client.pending.training is not None:
            return await self._poll()
        return await guarded(self._poll(), self.follower.approved(self.client))

    def _hear(self, headers: Mapping[str, str]) -> None:
        self._over = headers.get(WORK_HEADER) == WORK_OVER
        if self.follower is not None:
            self.follower.hear(headers.get(OFFERS_HEADER, ""))

    async def _poll(self) -> Task | None:
        query: dict[str, str | int] = {"run": self._seen[0], "after": self._seen[1]} if self._seen else {}
        if self._worked[0]:
            query |= {"work": self._worked[0], "version": self._worked[1]}
        return await self.client.transport.get(
            "/v1/task",
            Task,
            wait=LONG_POLL_SECONDS,
            retry=ONCE,
            limit=MAX_TASK_BYTES,
            read=partial(read_task, max_tensors=self.client.kit.policy.max_tensors),
            hear=self._hear,
            **query,
        )

    async def take_part(self, task: Task, unread: ProtocolViolation | None = None) -> None:
        """Take part in one exchange; whatever goes wrong in it, the agent goes on. unread: why it cannot be."""
        exchange_id = (task.run, task.exchange)
        self._seen = self._working_on = exchange_id
        self.client.pending.evict_for(task)
        self._silent = self.client.eligibility.holds and not tells_failures(task, self.client.kit.policy)
        before = replace(self.client.transport.traffic)
        self.client.output.context = _context(task)
        where: dict[str, str | int] = {"run": task.run, "exchange": task.exchange, "server_round": task.server_round}
        if task.run != self._run:
            self._run = task.run
            self.client.output.info("run", f"run {task.run}, {task.aggregation}, app {task.app_sha256[:12]}")
        self._now.note("taking part", message_type=task.message_type, server=self.client.transport.url, **where)
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
            self._end_silence()
            if self.client.ledger.open_exchange == exchange_id:
                traffic = self.client.transport.traffic
                up, down = traffic.up - before.up, traffic.down - before.down
                self.client.ledger.leave(*exchange_id, up=up, down=down)
            self._note_idle()

    async def _decline(self, unread: UnreadableTask) -> None:
        """Say that a task is not understood, which would otherwise look like a client that does not begin."""
        self._seen = unread.exchange_id
        show_end(self.client.output, unread)
        if (withdrawal := withdrawal_for(unread)) is not None:
            await self._withdraw(unread.exchange_id, withdrawal)
        await asyncio.sleep(self.pauses.refusal)

    async def _begin_work(self, task: Task) -> None:
        """Train for a later sum while this agent goes on; what it trained for before is wanted no more."""
        assert task.version is not None  # noqa: S101 - the task of a piece of work
        before, self._worked = self.client.pending.status_message(), (task.run, task.version.number)
        await self._stop_work()
        if before is not None:
            what = "stopped training" if before.state is WorkState.TRAINING else "gave up the update"
            text = f"{what} from version {before.version.number}: no sum waits for it any more, newer work has come"
            self.client.output.info("work", text)
        try:
            self.client = await catch_up(self.client, task.roster)
        except FedcoreError as error:  # the check of the roster says so, and the server is told
            self.client.output.warning("work", str(error))
        self._work = asyncio.create_task(self._do_work(task))

    async def _do_work(self, task: Task) -> None:
        self._note_idle(task)
        try:
            said = await do_work(task, self.client)
        finally:
            self._note_idle()
        if not self.client.eligibility.holds:
            self._news.set()
        with contextlib.suppress(FedcoreError):  # it is said again with the next joining
            await self.client.transport.send("PUT", "/v1/work", said)

    async def _end_work(self) -> None:
        """The run has ended, and the sum that this client trains for will not come."""
        if self.client.pending.training is not None:
            await self._stop_work()
            self.client.output.info("work", f"stopped training: run {self._worked[0]} has ended")
            if not self.client.eligibility.holds:
                self._news.set()

    async def _stop_work(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            await end(work)

    async def _withdraw(self, exchange_id: ExchangeId, reason: WithdrawIn) -> None:
        """Tell the server, or the next one that answers; without it, it would find out by itself, only later."""
        self._owed = (exchange_id, reason)
        path = f"{exchange_path(*exchange_id)}/withdrawal"
        with contextlib.suppress(FedcoreError, TimeoutError):
            try:
                async with asyncio.timeout(self.pauses.farewell):
                    await self.client.transport.send("POST", path, reason, retry=ONCE)
            except Refused as refused:
                if refused.status >= 500:
                    return
            self._owed = None

    async def _heartbeat(self, seconds: float, leaving: asyncio.Event) -> None:
        """Signs of life, one at once when there is news; a missed one is none, the next request tells of the server.

        Between two exchanges there are none without news: the open poll for a task is one.
        """
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            if leaving.is_set():
                return
            if self._working_on is None and not self._news.is_set():
                continue
            self._news.clear()
            run, exchange = self._working_on or ("", 0)
            with contextlib.suppress(FedcoreError):
                eligible = self._hides or self.client.eligibility.holds
                received = self.client.transport.received if self._working_on else None
                message = HeartbeatIn(run=run, exchange=exchange, eligible=eligible, received=received)
                await self.client.transport.send("POST", "/v1/heartbeat", message, retry=ONCE)

    async def _watch_eligibility(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.client.eligibility.seconds)
            await self._check_eligibility()

    async def _check_eligibility(self) -> None:
        """Take a reading; tell the owner what has changed, and by the next heartbeat, unless silent, the server."""
        if change := await self.client.eligibility.update():
            self.client.output.info("eligibility", change)
            if self._joined:
                self._note_idle()
            if not self._hides:
                self._news.set()

    @property
    def _hides(self) -> bool:
        """Whether the server is told nothing of this machine's state, now that local work goes on."""
        training = self.client.pending.training
        return self._silent or (training is not None and not tells_failures(training, self.client.kit.policy))

    def _end_silence(self) -> None:
        if self._silent and not self.client.eligibility.holds:
            self._news.set()
        self._silent = False

    def _note_idle(self, work: Task | None = None) -> None:
        """What the agent does while it takes part in no exchange. work: what it begins to train for."""
        if self._working_on is not None or self._away:
            return  # an exchange, or a server that is away, is more to say
        why, work = self.client.eligibility.reason, work or self.client.pending.training
        doing: Doing = "not eligible" if why else "training" if work is not None else "waiting"
        run = work.run if work is not None else ""
        self._now.note(doing, why=why, run=run, server=self.client.transport.url)

    def _note_away(self, error: FedcoreError) -> None:
        told = _answer_of(error)
        if not self._away or told not in ("", self._told):
            self._now.note("away", why=clean(str(error)), server=self.client.transport.url)
            text = f"{error}{_remedy(error, joined=self._joined)}; trying again until that changes"
            if isinstance(error, ProtocolViolation):
                self.client.output.error("refused", f"refused, taking part in nothing: {text}", check=error.check)
            else:
                self.client.output.warning("away", text)
        self._away, self._told = True, told or self._told


def _may_pass(error: FedcoreError) -> bool:
    """Whether the same request may succeed later although nobody changes anything here.

    Of a server with a roster that does not follow the one known here, too, or that has yet to get the one which admits
    this client: its owner may put that right, and to end and be started again would change nothing.
    """
    if isinstance(error, ProtocolViolation):
        return error.check in ROSTER_CHECKS
    waits = isinstance(error, ServerUnreachable | WrongClock | NotAccepted)
    return waits or (isinstance(error, Refused) and error.status >= 500)


def _answer_of(error: FedcoreError) -> str:
    """What a server answered that somebody has to change; "" where none answered, or one that does not serve now.

    Said once of each, also where a server was away before: it may come back as one that does not know this client.
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
    """What somebody has to do, where a client that was never heard here is not accepted."""
    if joined or not isinstance(error, NotAccepted):
        return ""
    return (
        ". Where this client was admitted only now, whoever runs the federation has yet to hand the server the roster "
        "that names it (fedcore federation publish)"
    )


def _is_revocation(error: FedcoreError | OSError) -> bool:
    """Whether this client's place in the federation is gone, which nothing can bring back."""
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
