"""Connections over a line that is dead: the kernel asks the other end from time to time, at no cost for the program.

A peer whose process hangs still answers that, since its kernel does; a machine, a cable or a router that is gone does
not. Without it a process that only waits for an answer would wait for hours.
"""

from __future__ import annotations

import socket
from typing import Final

DEAD_SECONDS: Final = 10.0
"""After so long without a sign of the other end a line is dead on which one end waits for an answer."""
PAUSE_SECONDS: Final = 45.0
"""The same in a transfer: a line that pauses is waited for, since the transfer would begin again.

A server gives a body up sooner (`stall_seconds`): it then knows that the line pauses, and that nobody hung up.
"""
_PROBE_SECONDS: Final = 2


def notice_dead_line(sock: socket.socket, seconds: float) -> None:
    """Have a TCP connection fail after so long without a sign of the other end, of at least 6 s, as far as it can.

    A connection that sends is left to its own deadlines, whose peer may have a reason not to read.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = 2 * _PROBE_SECONDS
    values = {
        "TCP_KEEPIDLE": idle,
        "TCP_KEEPINTVL": _PROBE_SECONDS,
        "TCP_KEEPCNT": int(seconds - idle) // _PROBE_SECONDS,
    }
    for name, value in values.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
