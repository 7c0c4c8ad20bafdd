"""Who is there: when each client last signed a request, which app its owner installed, what it may do and will tell."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, Self

_STEP_SECONDS: Final = 0.25
_LONGEST_STEP_SECONDS: Final = 1.0


class Uptime:
    """A clock that counts the seconds in which this server could hear its clients.

    A process that was stopped, or did not get the processor, finds on its return that nobody has been heard of for
    long, and only then reads what they sent meanwhile. By this clock that was a second.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: monotonic seconds."""
        self._clock = clock
        self._last = clock()
        self._seconds = 0.0

    def __call__(self) -> float:
        return self._seconds

    def step(self) -> None:
        """Count the time since the last step, a second of it at most."""
        now = self._clock()
        self._seconds += min(now - self._last, _LONGEST_STEP_SECONDS)
        self._last = now

    @classmethod
    @contextlib.asynccontextmanager
    async def counted(cls, clock: Callable[[], float]) -> AsyncIterator[Self]:
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


@dataclass(slots=True, kw_only=True)
class Presence:
    """Signs of life, in memory; a client that is silent too long counts as gone.

    clock: seconds, of `Uptime` in a server. installed: SHA-256 of the app of each client that ever joined.
    reporting: clients that tell why their local work fails.
    """

    clock: Callable[[], float]
    installed: dict[int, str] = field(default_factory=dict)
    reporting: set[int] = field(default_factory=set)
    _seen: dict[int, float] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)
    _stopped: set[int] = field(default_factory=set)

    def join(self, client: int, app_sha256: str, *, eligible: bool, reports_failures: bool = False) -> None:
        """The client has started, or has found this server again."""
        self.installed[client] = app_sha256
        (self.reporting.add if reports_failures else self.reporting.discard)(client)
        self._stopped.discard(client)
        self.note_eligible(client, eligible)

    def stop(self, client: int) -> None:
        """The client says that it stops: it is gone, whatever it still sends, until it joins again."""
        self._stopped.add(client)

    def touch(self, client: int) -> None:
        """A signed request of `client` arrived."""
        self._seen[client] = self.clock()

    def note_eligible(self, client: int, eligible: bool) -> None:
        """The client says whether its owner lets it train now."""
        (self._waiting.discard if eligible else self._waiting.add)(client)

    def waits(self, client: int) -> bool:
        """Whether the client said last that it may not train now."""
        return client in self._waiting

    def silent_for(self, client: int) -> float:
        """Seconds since the client's last sign of life; infinite if there was none, or it was that it stops."""
        seen = self._seen.get(client) if client not in self._stopped else None
        return math.inf if seen is None else self.clock() - seen

    def online(self, within: float) -> frozenset[int]:
        """Clients that signed a request in the last `within` seconds."""
        return frozenset(client for client in self._seen if self.silent_for(client) <= within)

    def mismatched(self, app_sha256: str, within: float) -> frozenset[int]:
        """Those online whose owner installed another app."""
        return frozenset(client for client in self.online(within) if self.installed.get(client) != app_sha256)

    def eligible(self, app_sha256: str, within: float) -> frozenset[int]:
        """Those online whose owner installed exactly this app, and lets it train now."""
        return self.online(within) - self.mismatched(app_sha256, within) - self._waiting
