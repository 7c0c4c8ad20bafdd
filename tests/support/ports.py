"""Ports that are known before anybody listens on them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A free port of an address that nobody else is given while the context lasts.

    Bound and not listened on, it is out of the kernel's hands, and yet a server that sets SO_REUSEADDR, as all of ours
    do, can take it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield int(holder.getsockname()[1])
