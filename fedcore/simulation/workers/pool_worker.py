"""A worker of a pool: one process that has the app loaded, and runs one client after the other.

When the socket to the simulation closes, the process ends, whatever the app is doing.
"""

from __future__ import annotations

import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import BatchedClients, ignore_line
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.simulation.workers.executor import PlainTask
from fedcore.simulation.workers.pool_messages import (
    TO_WORKER,
    Answered,
    AppLoaded,
    Begin,
    ClientQuestion,
    ClientRaised,
    ExchangeStart,
    FromWorker,
    Made,
    Sized,
    Train,
    WarningLine,
)
from fedcore.simulation.workers.states import Runners
from fedcore.state import ModelState
from fedcore.system.json_lines import BlockingConnection
from fedcore.system.workers.starting import kill_group
from fedcore.wire.tasks import Task


@dataclass(slots=True)
class Worker:
    """The clients of one exchange after the other, as a process runs them."""

    runners: Runners
    at_once: BatchedClients
    _task: Task | None = None
    _model: ModelState | None = None
    _out: Path | None = None
    _printed: set[str] = field(default_factory=set)
    """Tracebacks of this exchange: one that many clients have is printed once."""

    @classmethod
    def of(cls, begin: Begin, warn: Callable[[str], None] = ignore_line) -> Worker:
        """Load the app; raises AppError, and what its own code raises."""
        runners = Runners(app=FlowerApp.load(begin.app), clients=begin.clients, folder=begin.states, shared=True)
        runners.of(1)
        return cls(runners, BatchedClients(runner=runners.of, at_once=begin.at_once, warn=warn))

    @property
    def pinned(self) -> bool:
        """Whether its clients cannot go on elsewhere."""
        return self.runners.of(1).stays_in_process

    def begin(self, start: ExchangeStart) -> Sized:
        """What the next messages are about; the model is mapped, so that all workers share its pages."""
        self._task, self._out = start.task, start.out
        self._printed.clear()
        self._model = None if start.model is None else ModelState.open(start.model)
        return Sized(at_once=self.at_once.size(start.task, start.task.cohort))

    def train(self, order: Train) -> Iterator[Made | ClientRaised]:
        """What the clients make of the task, in their order; what a client's app raises is its own result.

        A client's Context is in its file before the message that it is done: another worker may go on with it.
        """
        self.runners.aggregated_rounds.update(zip(order.clients, order.aggregated_rounds, strict=True))
        waiting, failed = list(order.clients), deque[ClientRaised]()

        def note(client: int, error: BaseException) -> None:
            self.runners.done(client)
            waiting.remove(client)
            failed.append(raised(error, client, self._printed))

        try:
            for client, result in self.at_once.run(self._now, self._model, order.clients, note):
                while failed:
                    yield failed.popleft()
                made = self._made(client, result)
                self.runners.done(client)
                waiting.remove(client)
                yield made
        except BaseException as error:  # of this process, and so of all that are not done
            failure = raised(error, waiting[0])
            yield from (failure.model_copy(update={"client": client}) for client in waiting)
        yield from failed

    def ask(self, questions: Sequence[ClientQuestion]) -> Iterator[Answered | ClientRaised]:
        """What the clients answer; an exception is the answer of one."""
        self.runners.aggregated_rounds.update({one.client: one.aggregated_round for one in questions})
        tasks = {one.client: PlainTask(task=self._task_of(one), content=one.content, out=one.out) for one in questions}
        for client, answer in self.at_once.answer(tasks):
            self.runners.done(client)
            if isinstance(answer, Exception):
                yield raised(answer, client, self._printed)
            else:
                yield Answered(
                    client=client,
                    examples=answer.examples,
                    metrics=dict(answer.metrics),
                    error=answer.error,
                    seconds=answer.seconds,
                )

    def _made(self, client: int, result: LocalResult) -> Made:
        started, file = time.monotonic(), None
        if result.trained:
            assert self._out is not None  # noqa: S101 - an exchange has begun
            file = self._out / f"{client}.safetensors"
            result.save(file, durable=False)
        seconds = result.seconds + time.monotonic() - started
        return Made(client=client, examples=result.examples, metrics=dict(result.metrics), file=file, seconds=seconds)

    def _task_of(self, question: ClientQuestion) -> Task:
        change = {"message_type": question.message_type, "message": question.head, "model": question.reference}
        return self._now.model_copy(update=change)

    @property
    def _now(self) -> Task:
        assert self._task is not None  # noqa: S101 - an exchange has begun
        return self._task


def raised(error: BaseException, client: int | None, printed: set[str] | None = None) -> ClientRaised:
    """The message for an exception; the traceback of one that is not fedcore's goes to standard error.

    printed
        Tracebacks that need not be printed again, to which this one is added.
    """
    message = ClientRaised.of(error, client=client)
    if not message.error and (printed is None or message.trace not in printed):
        sys.stderr.write(message.trace)
    if printed is not None:
        printed.add(message.trace)
    return message


def serve(begin: Begin, descriptor: int) -> NoReturn:
    """Be one worker: load the app, then take messages until the simulation hangs up."""
    _use_threads(begin.threads)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]  # all print into one
    connection = BlockingConnection(socket.socket(fileno=descriptor), TO_WORKER, on_close=end)
    try:
        worker = Worker.of(begin, lambda line: _send(connection, WarningLine(line=line)))
        _send(connection, AppLoaded(pinned=worker.pinned))
    except BaseException as error:
        _send(connection, raised(error, None))
    while True:
        message = connection.receive()
        if isinstance(message, ExchangeStart):
            _send(connection, worker.begin(message))
        else:
            for made in worker.train(message) if isinstance(message, Train) else worker.ask(message.questions):
                _send(connection, made)


def _use_threads(count: int) -> None:
    """Torch may have been imported with one thread, for a process that was to be forked."""
    if count > 1 and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def _send(connection: BlockingConnection[Any], message: FromWorker) -> None:
    """Send a message, after what the app has printed meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(message)


def end() -> None:
    """End this process, its siblings, and what the app has started, its data loaders among it."""
    kill_group(0)
