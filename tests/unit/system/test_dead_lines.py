"""When the kernel gives up a TCP connection whose other end says nothing."""

from __future__ import annotations

import socket

import pytest

from fedcore.system.network.dead_lines import DEAD_SECONDS, PAUSE_SECONDS, notice_dead_line

IDLE = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")


@pytest.mark.skipif(not all(hasattr(socket, name) for name in IDLE), reason="this system has no such options")
def test_the_probes_of_a_connection_take_as_long_as_is_said() -> None:
    with socket.socket() as sock:
        for seconds in (PAUSE_SECONDS, DEAD_SECONDS):
            notice_dead_line(sock, seconds)
            idle, pause, count = (sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in IDLE)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert seconds - pause < idle + count * pause <= seconds
