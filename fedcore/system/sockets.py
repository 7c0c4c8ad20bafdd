"""Connections over a line that is dead: the kernel asks the other end from time to time, at no cost for the program.

A peer whose process hangs still answers that, since its kernel does; a machine, a cable or a router that is gone does
not. Without it a process that only waits for an answer would wait for hours.
"""

from __future__ import annotations

import socket
from typing import Final

DEAD_SECONDS: Final = 8
"""After so long without a sign of the other end an idle connection fails."""
_IDLE_SECONDS: Final = 4
_PAUSE_SECONDS: Final = 2
_UNACKNOWLEDGED_SECONDS: Final = 15.0
"""The same for a connection on which something is being sent: a slow line needs longer for that."""


def notice_dead_line(sock: socket.socket) -> None:
    """Have a TCP connection fail soon after its line went dead; does what the system can."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = (DEAD_SECONDS - _IDLE_SECONDS) // _PAUSE_SECONDS
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PAUSE_SECONDS),
        ("TCP_KEEPCNT", probes),
        ("TCP_USER_TIMEOUT", int(_UNACKNOWLEDGED_SECONDS * 1000)),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
