"""Bytes on the wire, as the kernel counts them for every TCP connection (Linux: tcp(7), TCP_INFO).

The counters are in the `struct tcp_info` of linux/tcp.h: payload with what was sent again, without the headers of TCP
and IP. So they hold for whatever moves the bytes, gloo's own threads among it, and need no part of it to count.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from fedcore.errors import EnvironmentFailure

_RECEIVED_AT: Final = 128
"""Offset of tcpi_bytes_received; since Linux 4.1."""
_SENT_AT: Final = 200
"""Offset of tcpi_bytes_sent; since Linux 4.19."""
_INFO_BYTES: Final = 208


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpBytes:
    """Bytes sent and received over TCP."""

    sent: int = 0
    received: int = 0

    @classmethod
    def now(cls) -> Self:
        """Over all TCP connections that this process has open now, each since its own start.

        Two of these are comparable if no connection was closed between them. Raises EnvironmentFailure if the
        kernel does not count.
        """
        sent = received = 0
        for connection in _connections():
            with connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            if len(info) < _INFO_BYTES:
                raise EnvironmentFailure("counting bytes on the wire needs Linux 4.19 or later")
            sent += struct.unpack_from("=Q", info, _SENT_AT)[0]
            received += struct.unpack_from("=Q", info, _RECEIVED_AT)[0]
        return cls(sent=sent, received=received)

    def __sub__(self, earlier: TcpBytes) -> TcpBytes:
        return TcpBytes(sent=self.sent - earlier.sent, received=self.received - earlier.received)


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
