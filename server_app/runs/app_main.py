"""The process of one run's ServerApp: user code, away from the process that answers requests.

Started as `python -P -m server_app.runs.app_main FD`; FD is a socket to the server, on which both sides
send one JSON object a line. What the app prints goes to standard output as usual, where the server
picks it up. When the server goes away the process ends, whatever the user's code is doing.
"""

from __future__ import annotations

import os
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
from fedcore.system.json_lines import BlockingConnection
from server_app.runs.app_messages import (
    TO_APP,
    Broken,
    BudgetReached,
    ExchangeAsked,
    ExchangeRefused,
    Finished,
    Nodes,
    NodesAsked,
    Replies,
    Start,
    ToApp,
)

SERVER_GONE = 70


class ServerBackend:
    """An ExchangeBackend whose exchanges the server carries out.

    folder: where models are left for the server.
    """

    def __init__(self, server: BlockingConnection[ToApp], folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._count = 0
        self._lock = threading.Lock()

    def nodes(self) -> list[int]:
        """Ids of the clients that are connected; waits for as many as the run needs."""
        with self._lock:
            self._server.send(NodesAsked())
            match self._server.receive():
                case Nodes(nodes=nodes):
                    return nodes
                case ExchangeRefused(reason=reason):
                    raise RoundFailed(reason)
                case _:
                    raise WorkerDied("the server gave an answer to another question")

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Carry out one exchange; blocks. Raises RoundFailed or BudgetSpent."""
        with self._lock:
            self._server.send(self._asked(request))
            match self._server.receive():
                case Replies(replies=replies):
                    return replies
                case BudgetReached(reason=reason):
                    raise BudgetSpent(reason)
                case ExchangeRefused(reason=reason):
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


def run(server: BlockingConnection[ToApp]) -> int:
    """Run the app that the server names, and tell it how that ended; the exit status."""
    start = server.receive()
    if not isinstance(start, Start):
        return SERVER_GONE
    folder = Path(start.folder)
    try:
        outcome = run_server_app(
            FlowerApp.load(Path(start.app)),
            backend=ServerBackend(server, folder),
            run=start.run,
            run_config=start.run_config,
            aggregation=start.aggregation,
        )
        path = folder / "final.safetensors"
        if outcome.state is not None:
            outcome.state.save(path)
        server.send(Finished(model=str(path) if outcome.state is not None else None))
    except FedcoreError as error:
        server.send(Broken(reason=str(error)))
        return 1
    except Exception as error:  # the user's own code: anything can come out of it
        traceback.print_exc()
        server.send(Broken(reason=f"the ServerApp raised {type(error).__name__}: {error}"))
        return 1
    return 0


def main(arguments: Sequence[str]) -> int:
    """Take over the socket whose descriptor is the only argument."""
    connection = socket.socket(fileno=int(arguments[0]))
    status = run(BlockingConnection(connection, TO_APP, gone=lambda: os._exit(SERVER_GONE)))
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    # Threads that user code left behind must not keep the process alive.
    os._exit(main(sys.argv[1:]))
