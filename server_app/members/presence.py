"""Presence of clients: open long polls, last signed requests, installed apps.

An idle client sends nothing: its open poll for a task is its sign of life, and the end of its connection its absence.
While it works on an exchange it sends heartbeats. What it asks for tells where it stands: a client of a cohort that
asks for a task after the open exchange has left that one, whatever it failed to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

_STEP_SECONDS: Final = 0.25
MOVED_ON: Final = (
    "has gone on to later exchanges, of which this server knows nothing: an older state of it was put back"
)
"""Why a client is gone that has taken a task with a larger number than that of the newest exchange."""

ExchangeId: TypeAlias = tuple[str, int]
"""A run and the number of an exchange in it."""


class Uptime:
    """A clock that counts the seconds in which this server could hear its clients.

    It grows by a quarter of a second whenever the event loop comes round to it, and that is due every quarter of a
    second: what the loop is late is no client's silence. A process that was stopped, did not get the processor, or has
    more to do than it can, finds what its clients sent meanwhile unread, and reads it before this clock has moved on.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: monotonic seconds."""
        self._clock = clock
        self._last = clock()
        self._seconds = 0.0

    def __call__(self) -> float:
        return self._seconds

    def step(self) -> None:
        """Count the time since the last step, as far as the step was due."""
        now = self._clock()
        self._seconds += min(now - self._last, _STEP_SECONDS)
        self._last = now

    @classmethod
    @contextlib.asynccontextmanager
    async def measure(cls, clock: Callable[[], float]) -> AsyncIterator[Self]:
        """Count on the running event loop while the context lasts."""
        uptime = cls(clock)

        async def count() -> None:
            while True:
                await asyncio.sleep(_STEP_SECONDS)
                uptime.step()

        counting = asyncio.create_task(count())
        try:
            yield uptime
        finally:
            counting.cancel()


@dataclass(slots=True)
class _TaskDelivery:
    """A task that was handed to a client, or forgotten by it: when first and when last, by the presence's clock."""

    task: ExchangeId
    first: float
    last: float


@dataclass(slots=True, kw_only=True)
class Presence:
    """Signs of life, in memory; a client that is silent too long counts as gone.

    clock
        Seconds, of `Uptime` in a server.
    installed
        SHA-256 of the app of each client that ever joined.
    reporting
        Clients that report why their local work fails.
    outdated
        Versions of clients that last joined with forms that this server does not speak. Until such a client joins
        again, its requests are no signs of life: it has only not noticed that another server answers it.
    """

    clock: Callable[[], float]
    installed: dict[int, str] = field(default_factory=dict)
    reporting: set[int] = field(default_factory=set)
    outdated: dict[int, str] = field(default_factory=dict)
    _last_sign: dict[int, float] = field(default_factory=dict)
    _expected: dict[int, float] = field(default_factory=dict)
    """When clients that are not online were last heard from, known or assumed."""
    _polling: Counter[int] = field(default_factory=Counter)
    _last_tasks: dict[int, ExchangeId] = field(default_factory=dict)
    _deliveries: dict[int, _TaskDelivery] = field(default_factory=dict)
    _forgotten: dict[int, _TaskDelivery] = field(default_factory=dict)
    """Tasks that clients have begun and know nothing of, and when they asked for another one."""
    _ineligible: set[int] = field(default_factory=set)
    _stopped: set[int] = field(default_factory=set)
    _refusals: dict[int, str] = field(default_factory=dict)
    """Why this server refuses a client that is there."""

    def join(self, client: int, app_sha256: str, *, eligible: bool, reports_failures: bool = False) -> None:
        """The client has started, or has found this server again."""
        self.installed[client] = app_sha256
        (self.reporting.add if reports_failures else self.reporting.discard)(client)
        self._stopped.discard(client)
        self._refusals.pop(client, None)
        self.outdated.pop(client, None)
        self.touch(client)
        self.note_eligible(client, eligible)

    def stop(self, client: int) -> None:
        """The client says that it stops: it is gone, whatever it still sends, until it joins again."""
        self._stopped.add(client)

    def refuse(self, client: int, why: str) -> bool:
        """The client cannot take part as it is, and counts as gone until it joins otherwise; whether that is news."""
        is_news = self._refusals.get(client) != why
        self._refusals[client] = why
        self.stop(client)
        return is_news

    @property
    def refusals(self) -> Mapping[int, str]:
        """Why clients are refused that are there; they count as gone."""
        return self._refusals

    def touch(self, client: int) -> None:
        """A signed request of `client` arrived, or more of one."""
        if client not in self.outdated:
            self._last_sign[client] = self.clock()

    @contextlib.contextmanager
    def polling(self, client: int) -> Iterator[None]:
        """The client waits for an answer, which is a sign of life for as long as it does."""
        self._polling[client] += 1
        try:
            yield
        finally:
            self._polling[client] -= 1
            if not self._polling[client]:
                del self._polling[client]
            self.touch(client)

    def note_hangup(self, client: int) -> None:
        """The connection ended on which a client waited: it is absent, unless it waits on another one.

        An exchange that has just asked for it gives it the time to come back, anyway.
        """
        if client not in self._polling and client in self._last_sign:
            self._expected[client] = self._last_sign.pop(client)

    def expect(self, clients: Iterable[int]) -> None:
        """An exchange of these clients resumes, and has only just begun to listen to them.

        They count as heard from now in `silent_for`, but not as online.
        """
        self._expected.update(dict.fromkeys(clients, self.clock()))

    def expect_unheard(self, clients: Iterable[int]) -> None:
        """Clients not heard from since this process began get time to come back; those that have left do not."""
        known = self._last_sign.keys() | self._expected.keys() | self._polling.keys() | self._stopped
        self.expect(client for client in clients if client not in known)

    def newest_task(self, run: str) -> int:
        """The largest number of an exchange of `run` that a client says it has taken; 0 without one."""
        return max((number for known, number in self._last_tasks.values() if known == run), default=0)

    def note_request(self, client: int, after: ExchangeId) -> None:
        """The client requests a task after the last one that it took."""
        self._last_tasks[client] = after

    def note_delivery(self, client: int, task: ExchangeId) -> None:
        """A task was sent to the client."""
        self._note_again(self._deliveries, client, task)

    def note_forgotten(self, client: int, task: ExchangeId) -> None:
        """The client requests another task than this one, which it has begun: it may have lost its files."""
        self._note_again(self._forgotten, client, task)

    def _note_again(self, times: dict[int, _TaskDelivery], client: int, task: ExchangeId) -> None:
        known, now = times.get(client), self.clock()
        if known is not None and known.task == task:
            known.last = now
        else:
            times[client] = _TaskDelivery(task, now, now)

    def absence_reason(self, client: int, task: ExchangeId, liveness: float, pause: float | None = None) -> str:
        """Why there is nothing to wait for from a client in an exchange; empty if there may be something.

        client
            Its number.
        task
            The exchange.
        liveness
            Seconds that the client may be silent.
        pause
            The same in the middle of a transfer; None if it is in none.
        """
        run, after = self._last_tasks.get(client, ("", 0))
        if run == task[0] and after > task[1]:
            return MOVED_ON
        if run == task[0] and after == task[1]:
            return "has left without a word"
        delivery = self._deliveries.get(client)
        if delivery is not None and delivery.task == task and delivery.last - delivery.first > liveness:
            return f"asks for its task for more than {liveness:g} s and does not begin"
        forgotten = self._forgotten.get(client)
        if forgotten is not None and forgotten.task == task and forgotten.last - forgotten.first > liveness:
            return f"asks for another task for more than {liveness:g} s, and knows nothing of this one"
        limit = liveness if pause is None else max(liveness, pause)
        if self.silent_for(client) > limit:
            if client in self._stopped:
                why = self._refusals.get(client)
                return f"is refused: {why}" if why else "has stopped"
            what = " in the middle of a transfer (pause-seconds)" if limit > liveness else ""
            return f"silent for more than {limit:g} s{what}"
        return ""

    def note_eligible(self, client: int, eligible: bool) -> None:
        """The client says whether its owner lets it train now."""
        (self._ineligible.discard if eligible else self._ineligible.add)(client)

    def is_ineligible(self, client: int) -> bool:
        """Whether the client said last that it may not train now."""
        return client in self._ineligible

    def silent_for(self, client: int) -> float:
        """Seconds since the client was last heard of; infinite if it never was, or said that it stops."""
        if client in self._stopped:
            return math.inf
        if client in self._polling:
            return 0.0
        moments = [times[client] for times in (self._last_sign, self._expected) if client in times]
        return self.clock() - max(moments) if moments else math.inf

    def online(self, within: float) -> frozenset[int]:
        """Clients that wait for an answer, or signed a request in the last `within` seconds."""
        now = self.clock()
        recent = {client for client, moment in self._last_sign.items() if now - moment <= within}
        return frozenset(recent | self._polling.keys()) - self._stopped

    def mismatched(self, app_sha256: str, within: float) -> frozenset[int]:
        """Those online whose owner installed another app."""
        return frozenset(client for client in self.online(within) if self.installed.get(client) != app_sha256)

    def eligible(self, app_sha256: str, within: float) -> frozenset[int]:
        """Those online whose owner installed exactly this app, and lets it train now."""
        return self.online(within) - self.mismatched(app_sha256, within) - self._ineligible
