"""Bytes on the wire, as the kernel counts them for every TCP connection (Linux: tcp(7), TCP_INFO).

The counters are those of `fedcore.monitoring.tcp_info`: payload with what was sent again, and with or without the
headers of TCP and IP. So they hold for whatever moves the bytes, gloo's own threads among it, and need no part of it to
count.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from fedcore.errors import EnvironmentFailure
from fedcore.monitoring.tcp_info import TcpInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpBytes:
    """Bytes sent and received over TCP.

    wire_sent, wire_received: the same with the headers of TCP and IP.
    """

    sent: int = 0
    received: int = 0
    wire_sent: int = 0
    wire_received: int = 0

    @classmethod
    def now(cls) -> Self:
        """Over all TCP connections that this process has open now, each since its own start.

        Two of these are comparable if no connection was closed between them. Raises EnvironmentFailure if the
        kernel does not count.
        """
        sent = received = wire_sent = wire_received = 0
        for connection in _connections():
            with connection:
                info, family = TcpInfo.of(connection), connection.family
            if info is None:
                raise EnvironmentFailure("counting bytes on the wire needs Linux 4.19 or later")
            came, went = info.on_the_wire(family)
            sent, received = sent + info.sent, received + info.received
            wire_sent, wire_received = wire_sent + went, wire_received + came
        return cls(sent=sent, received=received, wire_sent=wire_sent, wire_received=wire_received)

    def __sub__(self, earlier: TcpBytes) -> TcpBytes:
        return TcpBytes(
            sent=self.sent - earlier.sent,
            received=self.received - earlier.received,
            wire_sent=self.wire_sent - earlier.wire_sent,
            wire_received=self.wire_received - earlier.wire_received,
        )


def _connections() -> list[socket.socket]:
    """A duplicate of every TCP socket of this process; one for several descriptors of the same."""
    connections: dict[int, socket.socket] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            inode, duplicate = entry.stat().st_ino, socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # closed meanwhile, as is the descriptor that lists this folder
            continue
        kind = (duplicate.family, duplicate.type, duplicate.proto)
        if inode in connections or kind not in _TCP:
            duplicate.close()
        else:
            connections[inode] = duplicate
    return list(connections.values())


_TCP: Final = {(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) for family in (socket.AF_INET, socket.AF_INET6)}
