"""The process of one run's ServerApp: user code, away from the process that answers requests.

Started as `python -P -m server_app.runs.app.main FD`; FD is a socket to the server, on which both sides
send one JSON object a line. What the app prints goes to standard output as usual, from
which the server reads it. When the server goes away the process ends, whatever the user's code is doing.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from fedcore.data.questions import Question, answer_to_plain, coarse, question_from_plain
from fedcore.errors import BudgetSpent, FedcoreError, RoundFailed, WorkerDied
from fedcore.flower.apps.progress_protocol import progress_enabled
from fedcore.flower.grid.known_statistics import statistics_of
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.flower.grid.training_means import FOLDER, MeanRecorder
from fedcore.flower.results import Results
from fedcore.flower.serverside import begin_server_process, run_question, run_started
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.run.room import LEAST_MODEL
from fedcore.state import Layout, ModelState
from fedcore.state.mapped import LARGE_BYTES
from fedcore.system.files import write_file
from fedcore.system.json_lines import BlockingConnection
from fedcore.system.memory import set_aside
from fedcore.system.tracing import RUN, VARIABLE, traceparent
from fedcore.wire.events import FiguresFound
from fedcore.wire.operator import RESULTS_FILE
from server_app.runs.app.files import APP_FILES
from server_app.runs.app.messages import (
    TO_APP,
    AppCall,
    AppEnd,
    AppFailure,
    BudgetReached,
    ExchangeCall,
    ExchangeRefused,
    FiguresReport,
    Nodes,
    NodesCall,
    PlainExchangeCall,
    PlainQuestion,
    PlainReplies,
    Replies,
    Room,
    RoomCall,
    Start,
    ToApp,
    WaitReport,
)

Reply = TypeVar("Reply", Nodes, Replies, PlainReplies, Room)
SERVER_GONE = 70


class ServerBackend:
    """An `ExchangeBackend` whose exchanges the server carries out.

    folder
        Where models are left for the server.
    members
        How many the federation has, by the last message of the server.
    """

    def __init__(self, server: BlockingConnection[ToApp], folder: Path, members: int | None = None) -> None:
        self.members = members
        self._server = server
        self._folder = folder
        self._count = 0
        self._has_room = False
        self._lock = threading.Lock()

    def nodes(self) -> list[int]:
        """Ids of the clients that are connected; waits for as many as the run needs."""
        with self._lock:
            reply = self._call(NodesCall(), Nodes)
        self.members = reply.members
        return reply.nodes

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """Report for how many nodes the app waits; the server knows who is missing."""
        del present
        with self._lock:
            self._server.send(WaitReport(nodes=nodes, setting=setting))

    def write_first(self, model: ModelState, nodes: int) -> ModelState:
        """A large model, which goes to so many nodes, as it lies in the file that the server gets."""
        if model.layout.nbytes < LARGE_BYTES:
            return model
        with self._lock:
            self._ask_for_room(model.layout, nodes)
        path = self._path_of_next()
        model.save(path)
        return ModelState.open(path)

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """Carry out one exchange; blocks. Raises RoundFailed or BudgetSpent."""
        with self._lock:
            path = None
            if request.model is not None:
                self._ask_for_room(request.model.layout, len(request.nodes))
                _give_back_disk(request.model)
                path = self._path_of_next()
                if request.model.path != path:  # `write_first` has written it there
                    request.model.save(path)
            self._count += 1
            return self._call(ExchangeCall.of(request, path), Replies).replies

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """Carry out one plain exchange; blocks. Raises RoundFailed."""
        with self._lock:
            if request.layout is not None:
                self._ask_for_room(request.layout, len(request.messages))
            return self._call(self._plain_call(request), PlainReplies).replies

    def report_figures(self, figures: FiguresFound) -> None:
        """Report what the strategy made of replies; the server does not reply."""
        with self._lock:
            self._server.send(FiguresReport(figures=figures))

    def _ask_for_room(self, layout: Layout, nodes: int) -> None:
        """Before the first large model is written: a server without room for a round of it ends the run here."""
        if not self._has_room and layout.nbytes >= LEAST_MODEL:
            self._call(RoomCall(layout=layout, nodes=nodes), Room)
            self._has_room = True

    def _path_of_next(self) -> Path:
        return self._folder / f"model-{self._count + 1}.safetensors"

    def _call(self, call: AppCall | RoomCall, expected: type[Reply]) -> Reply:
        """The reply to a call, while the caller has the lock."""
        self._server.send(call)
        match self._server.receive():
            case BudgetReached(reason=reason):
                raise BudgetSpent(reason)
            case ExchangeRefused(reason=reason):
                raise RoundFailed(reason)
            case reply if isinstance(reply, expected):
                return reply
        raise WorkerDied("the server gave the reply to another request")

    def _plain_call(self, request: PlainRequest) -> PlainExchangeCall:
        self._count += 1
        paths = [self._folder / f"message-{self._count}-{index}.safetensors" for index in range(len(request.contents))]
        for path, content in zip(paths, request.contents, strict=True):
            content.save(path)
        return PlainExchangeCall(
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


def run(server: BlockingConnection[ToApp]) -> int:
    """Run the app that the server names, and report how that ended; the exit status."""
    start = server.receive()
    if not isinstance(start, Start):
        return SERVER_GONE
    begin_server_process(start.run)
    os.environ[VARIABLE] = traceparent(RUN, start.run)
    try:
        backend = ServerBackend(server, Path(start.folder), start.members)
        server.send(_run(start, backend))
    except FedcoreError as error:
        server.send(AppFailure(reason=str(error)))
        return 1
    except Exception as error:  # the user's own code: anything can come out of it
        traceback.print_exc()
        server.send(AppFailure(reason=f"the ServerApp raised {type(error).__name__}: {error}"))
        return 1
    return 0


def _run(start: Start, backend: ServerBackend) -> AppEnd:
    if start.question is not None:
        return _answer(start, question_from_plain(start.question), backend)
    return _run_app(start, backend)


def _run_app(start: Start, backend: ServerBackend) -> AppEnd:
    """Run the app's ServerApp to its end, in a folder of its own: files that it writes there come with the results."""
    folder = Path(start.folder)
    (folder / APP_FILES).mkdir(exist_ok=True)
    os.chdir(folder / APP_FILES)
    means = MeanRecorder(start.aggregation == "secure") if progress_enabled() else None
    with _known_statistics(start.known_statistics):
        outcome = run_started(
            start,
            backend=backend,
            most_nodes=lambda: backend.members,
            on_results=lambda results: _save_results(results, folder),
            initial=None if start.initial is None else ModelState.open(Path(start.initial)),
            on_loaded=set_aside,  # Flower collects garbage for every reply that Bulyan and QFedAvg read
            means=means,
            write_first=backend.write_first,
        )
    if means is not None:
        means.save(folder / APP_FILES / FOLDER)
    if outcome.state is None:
        return AppEnd(model=None)
    _give_back_disk(outcome.state)
    path = folder / "final.safetensors"
    outcome.state.save(path)
    return AppEnd(model=str(path))


def _give_back_disk(model: ModelState) -> None:
    """Before a large model is written: replies of ended rounds name each other, and map files that have no name now."""
    if model.layout.nbytes >= LEAST_MODEL:
        gc.collect()


def _known_statistics(known: Mapping[str, Any] | None) -> AbstractContextManager[None]:
    """The statistics that the app finds; a line of its output says whose they are."""
    if known is None:
        return statistics_of(None)
    print(  # noqa: T201 - what a ServerApp's process prints comes home with the run
        f"the statistics of the columns are those of run {known['run']}: no site is asked for them", flush=True
    )
    return statistics_of(known["values"], source=known["run"])


def _save_results(results: Results, folder: Path) -> None:
    if results:
        write_file(folder / RESULTS_FILE, json.dumps(results))


def _answer(start: Start, question: Question, backend: ServerBackend) -> AppEnd:
    """Ask a question; of the app nothing runs here."""
    answer = run_question(question, backend=backend, run=start.run, aggregation=start.aggregation)
    return AppEnd(model=None, statistics=answer_to_plain(question, coarse(answer)))


def main(arguments: Sequence[str]) -> int:
    """Take over the socket whose descriptor is the only argument."""
    connection = socket.socket(fileno=int(arguments[0]))
    status = run(BlockingConnection(connection, TO_APP, on_close=lambda: os._exit(SERVER_GONE)))
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    # Threads that user code left behind must not keep the process alive.
    os._exit(main(sys.argv[1:]))
