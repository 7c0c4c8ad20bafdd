"""A worker of a pool: one process that has the app loaded, and runs one client after the other.

When the socket to the simulation closes, the process ends, whatever the app is doing.
"""

from __future__ import annotations

import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import BatchedClients, ignore_line
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.settings import JobSettings
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

    @classmethod
    def of(cls, told: Begin, warn: Callable[[str], None] = ignore_line) -> Worker:
        """Load the app; raises AppError, and what its own code raises."""
        app = FlowerApp(
            folder=told.app, name="", serverapp="", clientapp=told.clientapp, run_config={}, settings=JobSettings()
        )
        runners = Runners(app=app, clients=told.clients, folder=told.states, shared=True)
        runners.of(1)
        return cls(runners, BatchedClients(runner=runners.of, at_once=told.at_once, warn=warn))

    @property
    def pinned(self) -> bool:
        """Whether its clients cannot go on elsewhere."""
        return self.runners.of(1).stays_in_process

    def begin(self, told: ExchangeStart) -> Sized:
        """What the next messages are about; the model is mapped, so that all workers share its pages."""
        self._task, self._out = told.task, told.out
        self._model = None if told.model is None else ModelState.open(told.model)
        return Sized(at_once=self.at_once.size(told.task, told.task.cohort))

    def train(self, told: Train) -> Iterator[Made | ClientRaised]:
        """What the clients make of the task, in their order; an exception is that of all who are left.

        What a client keeps is in its place before anybody hears of its end: another worker may go on with it.
        """
        self.runners.counted.update(zip(told.clients, told.counted, strict=True))
        left = deque(told.clients)
        started = time.monotonic()
        try:
            for client, result in self.at_once.run(self._now, self._model, told.clients):
                made = self._made(client, result, started)
                self.runners.done(client)
                left.popleft()
                yield made
                started = time.monotonic()
        except BaseException as error:  # an app may raise SystemExit too
            self.runners.done(left[0])
            found = raised(error, left[0])
            yield from (found.model_copy(update={"client": client}) for client in left)

    def ask(self, questions: Sequence[ClientQuestion]) -> Iterator[Answered | ClientRaised]:
        """What the clients answer; an exception is the answer of one."""
        self.runners.counted.update({asked.client: asked.counted for asked in questions})
        asked = {one.client: PlainTask(task=self._asked(one), content=one.content, out=one.out) for one in questions}
        started = time.monotonic()
        for client, answer in self.at_once.answer(asked):
            self.runners.done(client)
            if isinstance(answer, Exception):
                yield raised(answer, client)
            else:
                yield Answered(
                    client=client,
                    examples=answer.examples,
                    metrics=dict(answer.metrics),
                    error=answer.error,
                    seconds=time.monotonic() - started,
                )
            started = time.monotonic()

    def _made(self, client: int, result: LocalResult, started: float) -> Made:
        file = None
        if result.trained:
            assert self._out is not None  # noqa: S101 - an exchange has begun
            file = self._out / f"{client}.safetensors"
            result.save(file, durable=False)
        seconds = time.monotonic() - started
        return Made(client=client, examples=result.examples, metrics=dict(result.metrics), file=file, seconds=seconds)

    def _asked(self, asked: ClientQuestion) -> Task:
        change = {"message_type": asked.message_type, "message": asked.head, "model": asked.reference}
        return self._now.model_copy(update=change)

    @property
    def _now(self) -> Task:
        assert self._task is not None  # noqa: S101 - an exchange has begun
        return self._task


def raised(error: BaseException, client: int | None) -> ClientRaised:
    """The message for an exception; the traceback of one that is not fedcore's goes to standard error."""
    message = ClientRaised.of(error, client=client)
    if not message.error:
        sys.stderr.write(message.trace)
    return message


def serve(begin: Begin, descriptor: int) -> NoReturn:
    """Be one worker: load the app, then take messages until the simulation hangs up."""
    _use_threads(begin.threads)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]  # all print into one
    connection = BlockingConnection(socket.socket(fileno=descriptor), TO_WORKER, gone=end)
    try:
        worker = Worker.of(begin, lambda line: _send(connection, WarningLine(line=line)))
        _send(connection, AppLoaded(pinned=worker.pinned))
    except BaseException as error:
        _send(connection, raised(error, None))
    while True:
        told = connection.receive()
        if isinstance(told, ExchangeStart):
            _send(connection, worker.begin(told))
        else:
            for made in worker.train(told) if isinstance(told, Train) else worker.ask(told.questions):
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
