"""The process of one run's ServerApp: user code, away from the process that answers requests.

Started as `python -P -m server_app.runs.app_main FD`; FD is a socket to the server, on which both sides
send one JSON object a line. What the app prints goes to standard output as usual, where the server
picks it up. When the server goes away the process ends, whatever the user's code is doing.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

from fedcore.errors import BudgetSpent, FedcoreError, RoundFailed, WorkerDied
from fedcore.exchange import ExchangeReply, ExchangeRequest
from fedcore.flower.app import FlowerApp
from fedcore.flower.serverside import run_server_app
from fedcore.state import ModelState
from fedcore.wire import Message
from server_app.runs.app_messages import (
    TO_APP,
    Broken,
    BudgetReached,
    ExchangeAsked,
    ExchangeFailed,
    Finished,
    Nodes,
    NodesAsked,
    Replies,
    ReplyOut,
    Start,
    ToApp,
)

SERVER_GONE = 70


class Channel:
    """Lines to and from the server. A thread reads, so that the server's end is noticed at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="server", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send one message."""
        self._connection.sendall(message.model_dump_json().encode("utf-8") + b"\n")

    def receive(self) -> ToApp:
        """Wait for one message."""
        return TO_APP.validate_json(self._lines.get())

    def _read(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                self._lines.put(line)
        os._exit(SERVER_GONE)


class ServerBackend:
    """An ExchangeBackend whose exchanges the server carries out.

    folder: where models are left for the server.
    """

    def __init__(self, channel: Channel, folder: Path) -> None:
        self._channel = channel
        self._folder = folder
        self._count = 0
        self._lock = threading.Lock()

    def nodes(self) -> list[int]:
        """Ids of the clients that are connected; waits for as many as the run needs."""
        with self._lock:
            self._channel.send(NodesAsked())
            match self._channel.receive():
                case Nodes(nodes=nodes):
                    return nodes
                case ExchangeFailed(reason=reason):
                    raise RoundFailed(reason)
                case _:
                    raise WorkerDied("the server gave an answer to another question")

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Carry out one exchange; blocks. Raises RoundFailed or BudgetSpent."""
        with self._lock:
            self._channel.send(self._asked(request))
            match self._channel.receive():
                case Replies(replies=replies):
                    return [_reply(reply) for reply in replies]
                case BudgetReached(reason=reason):
                    raise BudgetSpent(reason)
                case ExchangeFailed(reason=reason):
                    raise RoundFailed(reason)
                case _:
                    raise WorkerDied("the server gave an answer to another question")

    def _asked(self, request: ExchangeRequest) -> ExchangeAsked:
        self._count += 1
        path = None
        if request.model is not None:
            path = self._folder / f"model-{self._count}.safetensors"
            request.model.save(path)
        return ExchangeAsked(
            message_type=request.message_type,
            nodes=list(request.nodes),
            server_round=request.server_round,
            model=str(path) if path else None,
            arrays_key=request.arrays_key,
            configs={key: dict(value) for key, value in request.configs.items()},
            weight_key=request.weight_key,
            timeout=request.timeout,
        )


def run(channel: Channel) -> int:
    """Run the app that the server names, and tell it how that ended; the exit status."""
    start = channel.receive()
    if not isinstance(start, Start):
        return SERVER_GONE
    folder = Path(start.folder)
    try:
        outcome = run_server_app(
            FlowerApp.load(Path(start.app)),
            backend=ServerBackend(channel, folder),
            run=start.run,
            run_config=start.run_config,
            aggregation=start.aggregation,
        )
        path = folder / "final.safetensors"
        if outcome.state is not None:
            outcome.state.save(path)
        channel.send(Finished(model=str(path) if outcome.state is not None else None))
    except FedcoreError as error:
        channel.send(Broken(reason=str(error)))
        return 1
    except Exception as error:  # the user's own code: anything can come out of it
        traceback.print_exc()
        channel.send(Broken(reason=f"the ServerApp raised {type(error).__name__}: {error}"))
        return 1
    return 0


def _reply(reply: ReplyOut) -> ExchangeReply:
    return ExchangeReply(
        node=reply.node,
        state=ModelState.open(Path(reply.state)) if reply.state else None,
        examples=reply.examples,
        metrics=reply.metrics,
    )


def main(arguments: Sequence[str]) -> int:
    """Take over the socket whose descriptor is the only argument."""
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    status = run(channel)
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    # Threads that user code left behind must not keep the process alive.
    os._exit(main(sys.argv[1:]))
