"""All bytes that members and operators sent and received, as the kernel counts them for their connections.

Next to the bytes of an exchange, which the guard counts, these are the whole: TLS, heads, polls and heartbeats, and the
headers of TCP and IP. A connection counts for whom its last authenticated request was of. Behind a proxy the bytes are
those between it and this server, and count for nobody.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from fedcore.monitoring.tcp_info import TcpInfo

Totals: TypeAlias = Mapping[str, tuple[int, int]]
"""Who -> bytes up and down."""
NONE: Final = (0, 0)
KEY_PREFIX: Final = "client-"
"""Who a member is, before its number, as the key of its signatures is called."""
OPERATORS: Final = "operators"
"""Who all operators together are."""


class CountedConnection(Protocol):
    """A connection; `who` is empty for a stranger."""

    @property
    def sock(self) -> socket.socket: ...

    @property
    def who(self) -> str: ...


@dataclass(slots=True)
class Traffic:
    """Counts of the connections that are open, and of those that were."""

    _closed: dict[str, tuple[int, int]] = field(default_factory=dict)
    _open: dict[CountedConnection, tuple[int, int]] = field(default_factory=dict)
    """The last counts: a socket may be closed before its connection leaves."""

    def note(self, connection: CountedConnection) -> None:
        """Take the counts of a connection that is open."""
        with contextlib.suppress(OSError):
            if (info := TcpInfo.of(connection.sock)) is not None:
                self._open[connection] = info.on_the_wire(connection.sock.family)

    def close(self, connection: CountedConnection) -> None:
        """A connection ends."""
        self.note(connection)
        self._closed[connection.who] = _sum(self._closed.get(connection.who, NONE), self._open.pop(connection, NONE))

    def totals(self) -> Totals:
        """Up to now, by who it was; for "" what strangers sent."""
        totals = dict(self._closed)
        for connection in list(self._open):
            self.note(connection)
            totals[connection.who] = _sum(totals.get(connection.who, NONE), self._open[connection])
        return totals


def since(now: Totals, before: Totals) -> Totals:
    """What came since earlier totals."""
    return {who: (up - before.get(who, NONE)[0], down - before.get(who, NONE)[1]) for who, (up, down) in now.items()}


def _sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]
