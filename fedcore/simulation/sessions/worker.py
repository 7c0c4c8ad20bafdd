"""A process that holds the sessions of some of a simulated round's clients.

    python -m fedcore.simulation.sessions.worker DESCRIPTOR

DESCRIPTOR is that of a socket to the simulation, which nobody else has. Both ends are one program of one user, so
orders and answers are pickled, as `multiprocessing` does it. A session never is: it is made here, and nothing of it
leaves but what a client sends. When the socket closes, the process ends with the order that it is at.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue

from fedcore.simulation.sessions.shard import Order, Raised, SessionShard


def serve(connection: Connection) -> None:
    """Do what is ordered until the other end is closed.

    A thread takes the orders, so that who sends one never waits for somebody to take the answer to the last.
    """
    orders: SimpleQueue[Order | None] = SimpleQueue()
    threading.Thread(target=_take, args=(connection, orders), name="orders", daemon=True).start()
    shard = SessionShard()
    while (order := orders.get()) is not None:
        try:
            answer = order(shard)
        except Exception as error:
            answer = Raised.by(error)
        try:
            connection.send(answer)
        except OSError:
            return


def _take(connection: Connection, orders: SimpleQueue[Order | None]) -> None:
    try:
        while True:
            orders.put(connection.recv())
    except (EOFError, OSError):
        orders.put(None)


def main() -> None:
    """Be such a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever simulates ends it
    serve(Connection(int(sys.argv[1])))
    os._exit(0)


if __name__ == "__main__":
    main()
