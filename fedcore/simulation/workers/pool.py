"""An executor of processes: each has the app loaded, and runs one client after the other.

What goes between this process and a worker are JSON lines over a socket. Models lie in safetensors files: the global
one once for all workers, which map it, each new one until it is in the sum. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import OnFailure, raise_failure
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.flower.clientside import Answer
from fedcore.run.plain import app_raised
from fedcore.simulation.workers.executor import PlainTask
from fedcore.simulation.workers.pool_messages import (
    Answered,
    Ask,
    ClientQuestion,
    ClientRaised,
    ExchangeStart,
    FromWorker,
    Made,
    Train,
)
from fedcore.simulation.workers.pool_processes import Processes
from fedcore.simulation.workers.scheduling import Costs, Homes, Queue, cut
from fedcore.state import FileSink, ModelState
from fedcore.system.files import make_private_folder
from fedcore.system.workers.cores import granted_cores
from fedcore.wire.tasks import Task

_QUEUE_DEPTH: Final = 2
"""Chunks that a worker has at a time, so that it need not wait for this process."""

Order: TypeAlias = Callable[[Sequence[int]], Train | Ask]


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class ProcessExecutor:
    """Runs the clients of a simulation in a pool of processes; a context manager, which ends them.

    The processes begin to load the app at once. They share the cores: if OMP_NUM_THREADS is not set, each gets its part
    of them for its threads.

    app
        In a folder.
    clients
        How many the simulation has.
    workers
        How many processes; 0 for one a core.
    at_once
        How many clients a worker trains at once (`BatchedClients`); which of them depends on their ids and the number
        of workers alone.
    """

    app: FlowerApp
    clients: int
    workers: int = 0
    at_once: int = 0
    _folder: Path = field(init=False)
    _processes: Processes = field(init=False)
    _costs: Costs = field(default_factory=Costs, init=False)
    _homes: Homes = field(init=False)
    _aggregated_rounds: dict[int, int] = field(default_factory=dict, init=False)
    _exchanges: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ConfigurationError("a pool needs at least 1 worker")
        count = min(self.workers or granted_cores(), self.clients)
        self._homes = Homes(count)
        self._folder = make_private_folder()
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        states = self._folder / "states"
        states.mkdir()
        self._processes = Processes(
            self.app, clients=self.clients, states=states, at_once=self.at_once, count=count, threads=_threads(count)
        )

    @property
    def processes(self) -> int:
        """The workers."""
        return self._homes.workers

    def __enter__(self) -> ProcessExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        """In the order in which they end; a file that a result lies in is removed unless it is taken before the next.

        What the app's code raises is an AppError; raises WorkerDied.
        """
        with self._exchange(task, model) as (folder, size):
            for client, result in self._work(task, clients, size, self._training):
                if isinstance(result, ClientRaised):
                    on_failure(client, result.exception())
                    continue
                assert isinstance(result, Made)  # noqa: S101 - the answer to Train
                if result.file is None:
                    made = LocalResult(examples=result.examples, metrics=result.metrics)
                else:
                    made = LocalResult.in_file(result.examples, result.metrics, folder / result.file.name)
                yield client, replace(made, seconds=result.seconds)
                if result.file is not None:
                    result.file.unlink(missing_ok=True)

    def answer(self, tasks: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        """In the order in which they come; raises WorkerDied."""
        if not tasks:
            return
        task = next(iter(tasks.values())).task
        questions = {client: self._question(client, one) for client, one in tasks.items()}
        with self._exchange(task, None) as (_, size):
            for client, result in self._work(
                task, list(tasks), size, lambda chunk: Ask(questions=[questions[client] for client in chunk])
            ):
                if isinstance(result, ClientRaised):
                    yield client, Answer(error=app_raised(result.reason))
                    continue
                assert isinstance(result, Answered)  # noqa: S101 - the answer to Ask
                yield (
                    client,
                    Answer(
                        examples=result.examples, metrics=result.metrics, error=result.error, seconds=result.seconds
                    ),
                )

    def count(self, server_round: int, clients: Sequence[int]) -> None:
        """Workers get it with each client's next task."""
        self._aggregated_rounds.update(dict.fromkeys(clients, server_round))

    def on_warning(self, warn: Callable[[str], None]) -> None:
        """Lines of the workers go there."""
        self._processes.warn = warn

    def save(self, folder: Path, clients: Sequence[int]) -> list[int]:
        """Copies: workers have written them with each task."""
        states = self._folder / "states"
        saved = [client for client in clients if (states / f"{client}.state").exists()]
        for client in saved:
            shutil.copyfile(states / f"{client}.state", folder / f"{client}.state")
        return saved

    def restore(self, states: Mapping[int, Path]) -> None:
        """Copies: workers look for them with each task."""
        for client, file in states.items():
            shutil.copyfile(file, self._folder / "states" / f"{client}.state")

    def close(self) -> None:
        """End the workers and what they started, at once, and remove their files."""
        self._processes.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def _exchange(self, task: Task, model: ModelState | None) -> Iterator[tuple[Path, int]]:
        """Tell all workers of an exchange.

        Gives the folder of its results, which ends with the block, and how many clients are worked on at once.
        """
        self._homes.pinned = self._processes.ready()
        self._processes.drain()  # an exchange that failed may have left some at work
        self._exchanges += 1
        folder = self._folder / f"exchange-{self._exchanges}"
        folder.mkdir()
        try:
            file = None
            if model is not None:
                file = folder / "model.safetensors"
                with FileSink(file, model.layout, durable=False) as sink:
                    model.write_to(sink)
            yield folder, self._processes.begin(ExchangeStart(task=task, model=file, out=folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _work(self, task: Task, clients: Sequence[int], size: int, order: Order) -> Iterator[tuple[int, FromWorker]]:
        """Give all clients to the workers, `size` at a time; yields the result of each."""
        costs = self._costs.expected(task.message_type, clients)
        queue = Queue(costs, self._homes, groups=cut(clients, size, self._homes.workers))
        for _ in range(_QUEUE_DEPTH):
            for worker in range(self._homes.workers):
                self._hand_out(queue, worker, order)
        for worker, client, result in self._processes.results():
            if isinstance(result, Made | Answered):
                self._costs.learn(task.message_type, client, result.seconds, result.examples or 0)
            if self._processes.chunks(worker) < _QUEUE_DEPTH:
                self._hand_out(queue, worker, order)
            yield client, result

    def _training(self, chunk: Sequence[int]) -> Train:
        return Train(
            clients=list(chunk), aggregated_rounds=[self._aggregated_rounds.get(client, 0) for client in chunk]
        )

    def _question(self, client: int, one: PlainTask) -> ClientQuestion:
        task = one.task
        assert task.message is not None  # noqa: S101 - of a plain exchange
        assert task.model is not None  # noqa: S101 - likewise
        return ClientQuestion(
            client=client,
            message_type=task.message_type,
            head=task.message,
            reference=task.model,
            content=one.content,
            out=one.out,
            aggregated_round=self._aggregated_rounds.get(client, 0),
        )

    def _hand_out(self, queue: Queue, worker: int, order: Order) -> None:
        if chunk := queue.take(worker):
            self._processes.tell(worker, order(chunk), chunk)


def _threads(workers: int) -> int:
    """Of each worker: what the environment says, or its part of the cores."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) else max(1, granted_cores() // workers)
