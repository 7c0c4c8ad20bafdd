"""The process of one run's ServerApp: user code, away from the process that answers requests.

Started as `python -P -m server_app.runs.app.main FD`; FD is a socket to the server, on which both sides
send one JSON object a line. What the app prints goes to standard output as usual, where the server
picks it up. When the server goes away the process ends, whatever the user's code is doing.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedcore.data.statistics import StatisticsQuery
from fedcore.data.statistics_report import STATISTICS
from fedcore.errors import BudgetSpent, FedcoreError, RoundFailed, WorkerDied
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.statistics_run import run_statistics
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.flower.grid.robust import Groups
from fedcore.flower.output import quiet_flower
from fedcore.flower.results import Results
from fedcore.flower.serverside import run_server_app, seed_generators
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.state import ModelState
from fedcore.system.files import write_file
from fedcore.system.json_lines import BlockingConnection
from fedcore.system.memory import set_aside
from fedcore.system.plain_json import from_plain, to_plain
from fedcore.wire.events import FiguresFound
from fedcore.wire.operator import RESULTS_FILE
from server_app.runs.app.files import APP_FILES
from server_app.runs.app.messages import (
    TO_APP,
    Broken,
    BudgetReached,
    ExchangeAsked,
    ExchangeRefused,
    Finished,
    Found,
    Nodes,
    NodesAsked,
    PlainAsked,
    PlainQuestion,
    PlainReplies,
    Replies,
    Start,
    ToApp,
    Waits,
)

SERVER_GONE = 70


class ServerBackend:
    """An ExchangeBackend whose exchanges the server carries out.

    folder: where models are left for the server. members: how many the federation has, as the server said last.
    """

    def __init__(self, server: BlockingConnection[ToApp], folder: Path, members: int | None = None) -> None:
        self.members = members
        self._server = server
        self._folder = folder
        self._count = 0
        self._lock = threading.Lock()

    def nodes(self) -> list[int]:
        """Ids of the clients that are connected; waits for as many as the run needs."""
        with self._lock:
            self._server.send(NodesAsked())
            match self._server.receive():
                case Nodes(nodes=nodes, members=members):
                    self.members = members
                    return nodes
                case ExchangeRefused(reason=reason):
                    raise RoundFailed(reason)
                case _:
                    raise WorkerDied("the server gave an answer to another question")

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """Tell for how many nodes the app waits; the server knows who is missing."""
        del present
        with self._lock:
            self._server.send(Waits(nodes=nodes, setting=setting))

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

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """Carry out one plain exchange; blocks. Raises RoundFailed."""
        with self._lock:
            self._server.send(self._asked_plainly(request))
            match self._server.receive():
                case PlainReplies(replies=replies):
                    return replies
                case ExchangeRefused(reason=reason):
                    raise RoundFailed(reason)
                case _:
                    raise WorkerDied("the server gave an answer to another question")

    def report_figures(self, figures: FiguresFound) -> None:
        """Tell what the strategy made of replies; nobody answers."""
        with self._lock:
            self._server.send(Found(figures=figures))

    def _asked_plainly(self, request: PlainRequest) -> PlainAsked:
        self._count += 1
        paths = [self._folder / f"message-{self._count}-{index}.safetensors" for index in range(len(request.contents))]
        for path, content in zip(paths, request.contents, strict=True):
            content.save(path)
        return PlainAsked(
            server_round=request.server_round,
            weight_key=request.weight_key,
            timeout=request.timeout,
            model=request.model,
            questions=[
                PlainQuestion(
                    node=one.node, message_type=one.message_type, head=one.head, content=str(paths[one.content])
                )
                for one in request.messages
            ],
        )

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
            ahead=dict(request.ahead),
        )


def run(server: BlockingConnection[ToApp]) -> int:
    """Run the app that the server names, and tell it how that ended; the exit status."""
    start = server.receive()
    if not isinstance(start, Start):
        return SERVER_GONE
    quiet_flower()
    seed_generators(f"fedcore ServerApp of run {start.run}")
    try:
        backend = ServerBackend(server, Path(start.folder), start.members)
        server.send(_run_app(start, backend) if start.question is None else _ask(start, start.question, backend))
    except FedcoreError as error:
        server.send(Broken(reason=str(error)))
        return 1
    except Exception as error:  # the user's own code: anything can come out of it
        traceback.print_exc()
        server.send(Broken(reason=f"the ServerApp raised {type(error).__name__}: {error}"))
        return 1
    return 0


def _run_app(start: Start, backend: ServerBackend) -> Finished:
    """Run the app's ServerApp to its end, in a folder of its own."""
    folder = Path(start.folder)
    _work_in(folder / APP_FILES)
    outcome = run_server_app(
        FlowerApp.load(Path(start.app)),
        backend=backend,
        run=start.run,
        run_config=start.run_config,
        aggregation=start.aggregation,
        most_nodes=lambda: backend.members,
        on_results=lambda results: _keep(results, folder),
        initial=None if start.initial is None else ModelState.open(Path(start.initial)),
        noised=start.noised,
        buffered=start.buffered,
        compressed=start.compressed,
        groups=Groups(start.groups, start.least_groups) if start.groups > 1 else None,
        on_loaded=set_aside,  # Flower collects garbage for every reply that Bulyan and QFedAvg read
    )
    if outcome.state is None:
        return Finished(model=None)
    path = folder / "final.safetensors"
    outcome.state.save(path)
    return Finished(model=str(path))


def _keep(results: Results, folder: Path) -> None:
    if results:
        write_file(folder / RESULTS_FILE, json.dumps(results))


def _ask(start: Start, question: Mapping[str, Any], backend: ServerBackend) -> Finished:
    """Ask for statistics; of the app nothing runs here."""
    asked = from_plain(TypeAdapter(StatisticsQuery), question, what="the question for statistics")
    found = run_statistics(asked, backend=backend, run=start.run, aggregation=start.aggregation)
    return Finished(model=None, statistics=to_plain(STATISTICS, found))


def _work_in(folder: Path) -> None:
    """What the app writes without naming a folder comes home with the run."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)


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
