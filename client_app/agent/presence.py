"""The agent's presence: what it does now, as the owner's activity file and the heartbeats to the server show it.

Meanwhile the owner's eligibility rules are watched. While one forbids training, the server learns that this client may
not train, and never why; in an exchange that hides failures it learns that only after the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import NoReturn

from client_app.agent.server_errors import kind_of_answer, remedy
from client_app.exchange.client import Client
from client_app.exchange.contribution import tells_failures
from client_app.http.retry import PROBE
from client_app.output import clean
from client_app.records.activity import ActivityFile, Doing
from client_app.records.ledger import ExchangeId
from fedcore.errors import FedcoreError, ProtocolViolation, ServerUnreachable
from fedcore.monitoring.formatting import the_federation
from fedcore.run.settings import ROUNDS_KEY
from fedcore.wire.presence import HeartbeatIn
from fedcore.wire.tasks import Task


@dataclass(slots=True)
class AgentPresence:
    """One agent's client, and what the agent does with it now."""

    client: Client
    """As the newest roster and app make it."""
    joined: bool = field(default=False, init=False)
    """Whether a server has ever accepted this client since the agent started."""
    away: bool = field(default=False, init=False)
    """Whether the server does not answer, or this client refuses it."""
    heartbeat_due: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when there is news for the server."""
    _exchange: ExchangeId | None = field(default=None, init=False)
    """The exchange that the agent takes part in."""
    _hides_state: bool = field(default=False, init=False)
    """Whether that exchange hides this machine's state from the server."""
    _run: str = field(default="", init=False)
    """The last run in the log."""
    _last_refusal: str = field(default="", init=False)
    """The last answer in the log that keeps this client from taking part."""
    _activity: ActivityFile = field(init=False)

    def __post_init__(self) -> None:
        self._activity = ActivityFile(self.client.state_dir)

    # --- what the agent does ------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Log that a server has accepted this client."""
        client = self.client
        again = " again" if self.away and self.joined else ""
        client.output.info(
            "join", f"connected{again} to {the_federation(client.kit.federation)} at {client.transport.url}"
        )
        self.away, self._last_refusal = False, ""
        self.note_idle()

    def begin(self, task: Task) -> None:
        """Note that the agent takes part in an exchange."""
        client = self.client
        self._exchange = (task.run, task.exchange)
        self._hides_state = client.eligibility.holds and not tells_failures(task, client.kit.policy)
        client.output.context = _context(task)
        if task.run != self._run:
            self._run = task.run
            client.output.info("run", f"run {task.run}, {task.aggregation}, app {task.app_sha256[:12]}")
        self._activity.note(
            "taking part",
            message_type=task.message_type,
            server=client.transport.url,
            run=task.run,
            exchange=task.exchange,
            server_round=task.server_round,
        )

    def end(self) -> None:
        """Note that the exchange is over for this client; the next heartbeat tells what it hid."""
        self._exchange = None
        self.client.output.context = {}
        if self._hides_state and not self.client.eligibility.holds:
            self.heartbeat_due.set()
        self._hides_state = False

    def note_idle(self, work: Task | None = None) -> None:
        """Write down what the agent does between exchanges.

        Args:
            work: the task that it starts to train for in the background, if any.
        """
        if self._exchange is not None or self.away:
            return  # the exchange, or the outage, is the news
        why, work = self.client.eligibility.reason, work or self.client.pending.training
        doing: Doing = "not eligible" if why else "training" if work is not None else "waiting"
        run = work.run if work is not None else ""
        self._activity.note(doing, why=why, run=run, server=self.client.transport.url)

    def note_away(self, error: FedcoreError) -> None:
        """Write down why no server serves this client; the log has each kind of answer once."""
        answer = kind_of_answer(error)
        if not self.away or answer not in ("", self._last_refusal):
            self._activity.note("away", why=clean(str(error)), server=self.client.transport.url)
            text = f"{error}{remedy(error, joined=self.joined)}; trying again until that changes"
            if isinstance(error, ProtocolViolation):
                self.client.output.error("refused", f"refused, taking part in nothing: {text}", check=error.check)
            else:
                self.client.output.warning("away", text)
        self.away, self._last_refusal = True, answer or self._last_refusal

    def note_stopped(self, why: str = "") -> None:
        """Write down that the agent ends, and why if nobody stopped it."""
        self._activity.note("stopped", why=clean(why))

    # --- heartbeats and eligibility -----------------------------------------------------------------------------

    async def send_heartbeats(self, seconds: float, leaving: asyncio.Event) -> None:
        """Send heartbeats, one at once when there is news. A lost one does no harm: the next request shows the outage.

        Between two exchanges only news is sent: the open poll for a task shows that the client is alive.

        Args:
            seconds: between two heartbeats of an exchange.
            leaving: ends this, once the caller sets `heartbeat_due` too.
        """
        is_silent = False
        while not leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.heartbeat_due.wait()
            if leaving.is_set():
                return
            if self._exchange is None and not self.heartbeat_due.is_set():
                continue
            self.heartbeat_due.clear()
            run, exchange = self._exchange or ("", 0)
            eligible = self._is_hiding or self.client.eligibility.holds
            received = self.client.transport.received if self._exchange else None
            message = HeartbeatIn(run=run, exchange=exchange, eligible=eligible, received=received)
            try:
                await self.client.transport.send("POST", "/v1/heartbeat", message, retry=PROBE)
                is_silent = False
            except ServerUnreachable as error:
                if not is_silent:
                    self.client.output.warning("waiting", f"{error}; trying again")
                is_silent = True
            except FedcoreError:
                pass

    async def watch_eligibility(self) -> NoReturn:
        """Check the owner's rules for ever."""
        while True:
            await asyncio.sleep(self.client.eligibility.seconds)
            await self.check_eligibility()

    async def check_eligibility(self) -> None:
        """Take a reading and log a change; the next heartbeat tells the server, unless the exchange hides it."""
        if change := await self.client.eligibility.update():
            self.client.output.info("eligibility", change)
            if self.joined:
                self.note_idle()
            if not self._is_hiding:
                self.heartbeat_due.set()

    @property
    def _is_hiding(self) -> bool:
        """Whether the running local work hides this machine's state from the server."""
        training = self.client.pending.training
        return self._hides_state or (training is not None and not tells_failures(training, self.client.kit.policy))


def _context(task: Task) -> dict[str, object]:
    return {
        "run": task.run,
        "exchange": task.exchange,
        "round": task.server_round,
        "rounds": task.run_config.get(ROUNDS_KEY, 0),
        "attempt": task.attempt,
        "aggregation": task.aggregation,
    }
