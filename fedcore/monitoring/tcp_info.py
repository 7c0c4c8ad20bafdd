"""What the kernel has counted of a TCP connection (Linux: tcp(7), TCP_INFO, `struct tcp_info` of linux/tcp.h)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

_RECEIVED_AT: Final = 128
"""Offset of tcpi_bytes_received; since Linux 4.1."""
_SEGMENTS_AT: Final = 136
"""Offset of tcpi_segs_out, before tcpi_segs_in; since Linux 4.2."""
_SENT_AT: Final = 200
"""Offset of tcpi_bytes_sent; since Linux 4.19."""
_INFO_BYTES: Final = 208
HEADER_BYTES: Final[Mapping[int, int]] = {socket.AF_INET: 52, socket.AF_INET6: 72}
"""Headers of a segment: those of IP, and of TCP with its timestamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpInfo:
    """The counts of one connection since its start.

    sent, received: bytes of payload, TLS included; what was sent again counts again.
    segments_sent, segments_received: those without payload included.
    """

    sent: int
    received: int
    segments_sent: int
    segments_received: int

    @classmethod
    def of(cls, connection: socket.socket) -> Self | None:
        """None if the kernel does not count; raises OSError for a socket that is closed."""
        if not hasattr(socket, "TCP_INFO"):
            return None
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _INFO_BYTES:
            return None
        (received,), (sent,) = struct.unpack_from("=Q", info, _RECEIVED_AT), struct.unpack_from("=Q", info, _SENT_AT)
        segments_sent, segments_received = struct.unpack_from("=II", info, _SEGMENTS_AT)
        return cls(sent=sent, received=received, segments_sent=segments_sent, segments_received=segments_received)

    def on_the_wire(self, family: int) -> tuple[int, int]:
        """Bytes received and sent with the headers of TCP and IP, for an address family."""
        header = HEADER_BYTES.get(family, 0)
        return self.received + header * self.segments_received, self.sent + header * self.segments_sent
