"""Who may hold a connection: a stranger for seconds and not many of them, members for as long as they like.

A connection is a stranger's until a request on it has shown a member's signature or an operator's token. Strangers have
half of the places at most, and can take none from those who are known; where that half is full the oldest stranger of
the busiest address goes. One address may have a quarter of their places, one who is known may have `EACH`, and a
proxy that the settings name, which answers for those behind it, any number. Connections of strangers are greeted at a
pace: what they cost is the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol, Self, TypeAlias

from fedcore.system.concurrency import end
from server_app.http.rate_limit import Network, Pace, is_within, network_of

log = logging.getLogger("fedcore.server")

CONNECTION_KEY: Final = "fedcore.connection"
"""Where the scope of a request has its `Standing`."""
EACH: Final = 64
"""Connections of one member, or of operators together."""
FAREWELL_SECONDS: Final = 1.0
"""For a peer to answer the end of TLS; one that never does holds its place no longer than that."""
GREETINGS_A_SECOND: Final = 20.0
"""Handshakes with strangers of one address; each takes a millisecond or two of the processor."""
GREETINGS_AT_ONCE: Final = 200.0
_MOST_DESCRIPTORS: Final = 1 << 20
_PAUSE: Final = 0.05


class Standing(Protocol):
    """A connection, as the application sees it. `who` is a name of ours, never of the peer."""

    def know(self, who: str) -> None:
        """A request on it has shown who sends it."""

    def doubt(self) -> bool:
        """A request on it has shown nothing; whether it should be closed."""


@dataclass(slots=True, eq=False)
class Visit:
    """One connection. who: who it is known to be, empty for a stranger. is_proxy: whether others are behind it."""

    connection: socket.socket = field(repr=False)
    address: str
    who: str = ""
    is_proxy: bool = False

    def end(self) -> None:
        """Have the event loop see the end of the stream, whatever state it is in; it then lets go of the rest."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


MakeProtocol: TypeAlias = Callable[[Visit], asyncio.Protocol]
FindContext: TypeAlias = Callable[[], ssl.SSLContext | None]


@dataclass(slots=True, kw_only=True)
class Door:
    """Counts the connections of a process.

    most: of all together. seconds: for the TLS handshake. proxies: whose connections are never strangers'.
    """

    most: int
    seconds: float
    proxies: tuple[Network, ...] = ()
    pace: Pace = field(
        default_factory=lambda: Pace(rate=GREETINGS_A_SECOND, burst=GREETINGS_AT_ONCE, clock=time.monotonic)
    )
    _count: int = 0
    _strangers: dict[str, dict[Visit, None]] = field(default_factory=dict)
    """By address, the oldest first."""
    _known: dict[str, dict[Visit, None]] = field(default_factory=dict)
    """The same by who they are."""
    _crowded: bool = False

    @classmethod
    def of_process(cls, seconds: float, proxies: tuple[Network, ...] = ()) -> Self:
        """Three quarters of the files that the process may open, which is raised to what it can be."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        top = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
        if soft == resource.RLIM_INFINITY:
            soft = _MOST_DESCRIPTORS
        elif soft < top:
            resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
            soft = top
        return cls(most=soft * 3 // 4, seconds=seconds, proxies=proxies)

    @property
    def for_strangers(self) -> int:
        """How many of the connections strangers may have."""
        return max(self.most // 2, 1)

    @property
    def for_an_address(self) -> int:
        """How many of those may come from one address."""
        return max(self.for_strangers // 4, 1)

    @property
    def strangers(self) -> int:
        """How many they have."""
        return sum(map(len, self._strangers.values()))

    async def serve(self, listener: socket.socket, make: MakeProtocol, tls: FindContext) -> NoReturn:
        """Accept connections until cancelled. make: the protocol of one, which says `leave` at its end.

        tls: asked for each connection, so that a new certificate counts from the next one on.
        """
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        greetings: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:  # no descriptor is left, or the peer went away again
                    log.warning("a connection could not be accepted: %s", error.strerror)
                    await asyncio.sleep(_PAUSE)
                    continue
                visit = self.admit(connection, str(address[0]))
                if visit is None:
                    connection.close()
                    continue
                greeting = loop.create_task(self._greet(visit, make, tls()))
                greetings.add(greeting)
                greeting.add_done_callback(greetings.discard)
        finally:
            await end(*greetings)

    async def _greet(self, visit: Visit, make: MakeProtocol, tls: ssl.SSLContext | None) -> None:
        limits = {"ssl_handshake_timeout": self.seconds, "ssl_shutdown_timeout": FAREWELL_SECONDS} if tls else {}
        if not visit.is_proxy:
            await asyncio.sleep(self.pace.wait(visit.address))
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: make(visit), visit.connection, ssl=tls, **limits)
        except OSError:  # no handshake, or not in time
            visit.connection.close()
            self.leave(visit)

    def admit(self, connection: socket.socket, address: str) -> Visit | None:
        """A place for a new connection, where need be that of another stranger; None where there is none."""
        if is_within(address, self.proxies):
            return self._admit_proxy(connection, address)
        address = network_of(address)
        full = self._count >= self.most or self.strangers >= self.for_strangers
        if len(self._strangers.get(address, ())) >= self.for_an_address or (full and not self._strangers):
            self._note_crowd()
            return None
        if full:
            self._note_crowd()
            busiest = max(self._strangers.values(), key=len)
            self._turn_out(next(iter(busiest)))
        visit = Visit(connection, address)
        self._strangers.setdefault(address, {})[visit] = None
        self._count += 1
        return visit

    def _admit_proxy(self, connection: socket.socket, address: str) -> Visit | None:
        if self._count >= self.most:
            self._note_crowd()
            return None
        visit = Visit(connection, address, who=f"proxy {address}", is_proxy=True)
        self._known.setdefault(visit.who, {})[visit] = None
        self._count += 1
        return visit

    def know(self, visit: Visit, who: str) -> None:
        """A request on this connection showed who it is; the oldest connection of one with too many goes."""
        if visit.is_proxy or visit.who == who or not self._forget(visit):
            return
        if not visit.who:
            self.pace.forgive(visit.address)
        visit.who = who
        own = self._known.setdefault(who, {})
        own[visit] = None
        self._count += 1
        if len(own) > EACH:
            self._turn_out(next(iter(own)))

    def leave(self, visit: Visit) -> None:
        """A connection has ended; to say so again changes nothing."""
        self._forget(visit)
        if self._count < self.for_an_address:
            self._crowded = False

    def _turn_out(self, visit: Visit) -> None:
        visit.end()
        self._forget(visit)

    def _forget(self, visit: Visit) -> bool:
        """Take it off the list that it is on; whether it was on one."""
        lists, name = (self._known, visit.who) if visit.who else (self._strangers, visit.address)
        if visit not in lists.get(name, ()):
            return False
        del lists[name][visit]
        if not lists[name]:
            del lists[name]
        self._count -= 1
        return True

    def _note_crowd(self) -> None:
        if not self._crowded:
            self._crowded = True
            log.warning("more connections than there are places for; strangers are turned away")
