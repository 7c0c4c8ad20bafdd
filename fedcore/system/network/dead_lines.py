"""Connections over a line that is dead: the kernel asks the other end from time to time, at no cost for the program.

A peer whose process hangs still answers that, since its kernel does; a machine, a cable or a router that is gone does
not. Without it a process that only waits for an answer would wait for hours.
"""

from __future__ import annotations

import socket
from typing import Final

DEAD_SECONDS: Final = 10
"""After so long without a sign of the other end a connection fails, idle or not."""
_IDLE_SECONDS: Final = 4
_PAUSE_SECONDS: Final = 2


def notice_dead_line(sock: socket.socket) -> None:
    """Have a TCP connection fail soon after its line went dead; does what the system can."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PAUSE_SECONDS),
        ("TCP_KEEPCNT", (DEAD_SECONDS - _IDLE_SECONDS) // _PAUSE_SECONDS),
        ("TCP_USER_TIMEOUT", DEAD_SECONDS * 1000),  # counts in place of the number of probes, if the system knows it
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
