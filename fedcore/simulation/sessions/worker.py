"""A process with the sessions of some of a simulated round's clients.

    python -m fedcore.simulation.sessions.worker DESCRIPTOR

DESCRIPTOR is that of a socket to the simulation. A session is made here, and only what a client sends leaves the
process. It ends when the simulation closes the socket.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from fedcore.simulation.sessions.shard import CALLS, SessionShard
from fedcore.system.json_lines import BlockingConnection


def main() -> None:
    """Carry out what the simulation orders until it closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the simulation ends this process
    connection = BlockingConnection(socket.socket(fileno=int(sys.argv[1])), CALLS.orders, on_close=lambda: os._exit(0))
    shard = SessionShard()
    while True:
        connection.send(CALLS.execute(shard, connection.receive()))


if __name__ == "__main__":
    main()
