"""Limits on connections: strangers may hold a few for seconds, members as many as they need.

A connection is a stranger's until a request on it has shown a member's signature or an operator's token. Strangers have
half of the places at most, and can take none from those who are known; if that half is full the oldest stranger of
the busiest address is closed. One address may have a quarter of their places, an authenticated peer may have
`CONNECTIONS_PER_PEER`, and a proxy that the settings name, which answers for those behind it, any number. The TLS
handshakes of strangers are rate-limited: they are what a stranger costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol, Self, TypeAlias

from fedcore.system.concurrency import end
from fedcore.system.network.dead_lines import DEAD_SECONDS, PAUSE_SECONDS, notice_dead_line
from server_app.http.rate_limit import Network, TokenBucket, is_within, network_of
from server_app.members.traffic import Traffic

log = logging.getLogger("fedcore.server")

CONNECTION_KEY: Final = "fedcore.connection"
"""Where the scope of a request has its `ConnectionState`."""
CONNECTIONS_PER_PEER: Final = 64
"""Connections of one member, or of operators together."""
TLS_SHUTDOWN_SECONDS: Final = 1.0
"""For a peer to answer the end of TLS; one that never does holds its place no longer than that."""
HANDSHAKES_PER_SECOND: Final = 20.0
"""Handshakes with strangers of one address; each takes a millisecond or two of the processor."""
HANDSHAKE_BURST: Final = 200.0
_MOST_DESCRIPTORS: Final = 1 << 20
_PAUSE: Final = 0.05


class ConnectionState(Protocol):
    """A connection, as the application sees it. `who` is a name that this server gives, never the peer's own."""

    def mark_authenticated(self, who: str) -> None:
        """A request on it has shown who sends it."""

    def mark_suspicious(self) -> bool:
        """A request on it has shown nothing; whether it should be closed."""

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is transferred meanwhile: a dead line is noticed sooner."""


@dataclass(slots=True, eq=False)
class Connection:
    """One connection.

    sock
        Its socket.
    address
        Of the peer.
    who
        The authenticated peer; empty for a stranger.
    is_proxy
        Whether others are behind it.
    """

    sock: socket.socket = field(repr=False)
    address: str
    who: str = ""
    is_proxy: bool = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Nothing is transferred meanwhile: a dead line is noticed sooner."""
        with contextlib.suppress(OSError):  # it has ended
            notice_dead_line(self.sock, DEAD_SECONDS)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                notice_dead_line(self.sock, PAUSE_SECONDS)

    def end(self) -> None:
        """Have the event loop see the end of the stream, whatever state it is in; it then lets go of the rest."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


MakeProtocol: TypeAlias = Callable[[Connection], asyncio.Protocol]
FindContext: TypeAlias = Callable[[], ssl.SSLContext | None]


@dataclass(slots=True, kw_only=True)
class ConnectionLimiter:
    """Counts the connections of a process.

    most
        Limit on all together.
    seconds
        For the TLS handshake.
    proxies
        Trusted proxies, whose connections do not count as strangers.
    handshake_limit
        Rate limit of the TLS handshakes of one address.
    traffic
        Counts their bytes.
    """

    most: int
    seconds: float
    proxies: tuple[Network, ...] = ()
    handshake_limit: TokenBucket = field(
        default_factory=lambda: TokenBucket(rate=HANDSHAKES_PER_SECOND, burst=HANDSHAKE_BURST, clock=time.monotonic)
    )
    traffic: Traffic = field(default_factory=Traffic)
    _count: int = 0
    _strangers: dict[str, dict[Connection, None]] = field(default_factory=dict)
    """By address, the oldest first."""
    _known: dict[str, dict[Connection, None]] = field(default_factory=dict)
    """The same by who they are."""
    _is_full: bool = False

    @classmethod
    def of_process(cls, seconds: float, proxies: tuple[Network, ...] = (), traffic: Traffic | None = None) -> Self:
        """Three quarters of the files that the process may open, which is raised to what it can be."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        top = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
        if soft == resource.RLIM_INFINITY:
            soft = _MOST_DESCRIPTORS
        elif soft < top:
            resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
            soft = top
        return cls(most=soft * 3 // 4, seconds=seconds, proxies=proxies, traffic=traffic or Traffic())

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
        """Accept connections until cancelled.

        listener
            A listening socket.
        make
            Makes the protocol of a connection, which calls `leave` at its end.
        tls
            Gives the TLS context of each connection, so that a new certificate counts from the next one on.
        """
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        handshakes: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(listener)
                except OSError as error:  # no descriptor is left, or the peer went away again
                    log.warning("a connection could not be accepted: %s", error.strerror)
                    await asyncio.sleep(_PAUSE)
                    continue
                connection = self.admit(sock, str(address[0]))
                if connection is None:
                    sock.close()
                    continue
                notice_dead_line(sock, PAUSE_SECONDS)
                handshake = loop.create_task(self._handshake(connection, make, tls()))
                handshakes.add(handshake)
                handshake.add_done_callback(handshakes.discard)
        finally:
            await end(*handshakes)

    async def _handshake(self, connection: Connection, make: MakeProtocol, tls: ssl.SSLContext | None) -> None:
        limits = {"ssl_handshake_timeout": self.seconds, "ssl_shutdown_timeout": TLS_SHUTDOWN_SECONDS} if tls else {}
        if not connection.is_proxy:
            await asyncio.sleep(self.handshake_limit.wait(connection.address))
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: make(connection), connection.sock, ssl=tls, **limits)
        except OSError:  # no handshake, or not in time
            connection.sock.close()
            self.leave(connection)

    def admit(self, sock: socket.socket, address: str) -> Connection | None:
        """A slot for a new connection, if need be that of another stranger; None if there is none."""
        if is_within(address, self.proxies):
            return self._admit_proxy(sock, address)
        address = network_of(address)
        full = self._count >= self.most or self.strangers >= self.for_strangers
        if len(self._strangers.get(address, ())) >= self.for_an_address or (full and not self._strangers):
            self._warn_full()
            return None
        if full:
            self._warn_full()
            busiest = max(self._strangers.values(), key=len)
            self._evict(next(iter(busiest)))
        connection = Connection(sock, address)
        self._strangers.setdefault(address, {})[connection] = None
        self._count += 1
        return connection

    def _admit_proxy(self, sock: socket.socket, address: str) -> Connection | None:
        if self._count >= self.most:
            self._warn_full()
            return None
        connection = Connection(sock, address, who=f"proxy {address}", is_proxy=True)
        self._known.setdefault(connection.who, {})[connection] = None
        self._count += 1
        return connection

    def mark_authenticated(self, connection: Connection, who: str) -> None:
        """A request on this connection showed who it is; the oldest connection of one with too many goes."""
        self.traffic.note(connection)
        if connection.is_proxy or connection.who == who or not self._forget(connection):
            return
        if not connection.who:
            self.handshake_limit.forgive(connection.address)
        connection.who = who
        own = self._known.setdefault(who, {})
        own[connection] = None
        self._count += 1
        if len(own) > CONNECTIONS_PER_PEER:
            self._evict(next(iter(own)))

    def leave(self, connection: Connection) -> None:
        """A connection has ended; to say so again changes nothing."""
        self.traffic.close(connection)
        self._forget(connection)
        if self._count < self.for_an_address:
            self._is_full = False

    def _evict(self, connection: Connection) -> None:
        connection.end()
        self._forget(connection)

    def _forget(self, connection: Connection) -> bool:
        """Take it off the list that it is on; whether it was on one."""
        lists, name = (self._known, connection.who) if connection.who else (self._strangers, connection.address)
        if connection not in lists.get(name, ()):
            return False
        del lists[name][connection]
        if not lists[name]:
            del lists[name]
        self._count -= 1
        return True

    def _warn_full(self) -> None:
        if not self._is_full:
            self._is_full = True
            log.warning("more connections than there are places for; strangers are turned away")
