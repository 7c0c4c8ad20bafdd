"""What the fork server of tests does otherwise than Python's: it outlives whoever asks it for a process.

A server that is killed right before it sends its request, as the kill harness does it, ends Python's fork server, and
with it whatever else would ask it for a process (`multiprocessing.reduction.recvfds` raises EOFError in its loop).
"""

from __future__ import annotations

import errno
import socket
from multiprocessing import reduction
from typing import Any

_receive: Any = reduction.recvfds


def _received(sock: socket.socket, size: int) -> list[int]:
    try:
        files: list[int] = _receive(sock, size)
    except (EOFError, ConnectionError) as error:
        # The one error after which the loop goes on.
        raise ConnectionAbortedError(errno.ECONNABORTED, "who asked is gone") from error
    return files


reduction.recvfds = _received
