"""Executors: they run the apps of simulated clients."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, Self

from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import BatchedClients, OnFailure, raise_failure
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.flower.clientside import Answer, ClientRunner
from fedcore.simulation.workers.states import Runners
from fedcore.state import ModelState
from fedcore.system.files import make_private_folder
from fedcore.wire.base import Scalar
from fedcore.wire.record_file import MemoryRecords
from fedcore.wire.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTask:
    """A message of a plain exchange to one client: its content, a record file, and where its reply goes."""

    task: Task
    content: Path
    out: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _InlineTask:
    """The same in this process, whose replies are read here."""

    task: Task
    content: Path
    out: MemoryRecords = field(default_factory=MemoryRecords)


MOST_IN_MEMORY: Final = 1 << 22
"""Bytes of a message whose replies are kept in memory."""


class ClientExecutor(Protocol):
    """Runs the apps of clients, each with a Context of its own that lasts as long as the run.

    Results come in any order, each as soon as it is there. What a client's app keeps, it finds again in the next task.
    A context manager, which closes it.
    """

    @property
    def processes(self) -> int:
        """How many processes on this machine it has, in addition to this one."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        """What the apps of `clients` make of one task.

        on_failure
            Takes what a client's app raises, AppError or what the user's code raises; by default it ends all.
        """
        ...

    def answer(self, tasks: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        """What clients answer to a message of a plain exchange; an exception of the user's code is one's answer too."""
        ...

    def count(self, server_round: int, clients: Sequence[int]) -> None:
        """The updates that these clients made in a round are in its sum (`ClientRunner.aggregated_round`)."""
        ...

    def on_warning(self, warn: Callable[[str], None]) -> None:
        """Call `warn` with each warning, a line for the user."""
        ...

    def save(self, folder: Path, clients: Sequence[int]) -> list[int]:
        """Write the Contexts of these clients into a folder, `CLIENT.state` each; returns who has one.

        Raises ConfigurationError if this executor cannot.
        """
        ...

    def restore(self, states: Mapping[int, Path]) -> None:
        """Give clients the Contexts that another executor has saved, before they do anything."""
        ...

    def close(self) -> None:
        """End whatever runs."""
        ...


@dataclass(slots=True)
class ExecutorWrapper:
    """Base of executors that add something to another one: passes everything on to it."""

    executor: ClientExecutor

    @property
    def processes(self) -> int:
        return self.executor.processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        return self.executor.run(task, model, clients, on_failure)

    def answer(self, tasks: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        return self.executor.answer(tasks)

    def count(self, server_round: int, clients: Sequence[int]) -> None:
        self.executor.count(server_round, clients)

    def on_warning(self, warn: Callable[[str], None]) -> None:
        self.executor.on_warning(warn)

    def save(self, folder: Path, clients: Sequence[int]) -> list[int]:
        return self.executor.save(folder, clients)

    def restore(self, states: Mapping[int, Path]) -> None:
        self.executor.restore(states)

    def close(self) -> None:
        self.executor.close()


@dataclass(slots=True)
class RecordingExecutor(ExecutorWrapper):
    """Records what a checkpoint has to have of an executor.

    worked
        The clients that have worked since it was cleared.
    aggregated_rounds
        Client -> the last round whose sum has its update.
    """

    worked: set[int] = field(default_factory=set, init=False)
    aggregated_rounds: dict[int, int] = field(default_factory=dict, init=False)

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        self.worked.update(clients)
        return self.executor.run(task, model, clients, on_failure)

    def answer(self, tasks: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        self.worked.update(tasks)
        return self.executor.answer(tasks)

    def count(self, server_round: int, clients: Sequence[int]) -> None:
        self.aggregated_rounds.update(dict.fromkeys(clients, server_round))
        self.executor.count(server_round, clients)


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class InlineExecutor:
    """All clients in this process, in the order of their ids.

    clients
        How many there are.
    at_once
        How many train at once if the app allows it (`BatchedClients`).
    node
        The node config of each of them; None if each has its share of one data set.
    """

    app: FlowerApp
    clients: int
    at_once: int = 1
    node: Mapping[str, Scalar] | None = None
    _runners: Runners = field(init=False)
    _at_once: BatchedClients = field(init=False)

    def __post_init__(self) -> None:
        folder = make_private_folder()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._runners = Runners(app=self.app, clients=self.clients, folder=folder, shared=False, node=self.node)
        self._at_once = BatchedClients(runner=self.runner, at_once=self.at_once)
        self.runner(1)  # an app that cannot be loaded is known before the run begins

    @property
    def processes(self) -> int:
        """None."""
        return 0

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        """In the order of `clients`."""
        return self._at_once.run(task, model, clients, on_failure)

    def answer(self, tasks: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        """In the order of `tasks`; replies to small models stay in this process's memory, others are files."""
        here = {client: _here(one) for client, one in tasks.items()}
        for client, answer in self._at_once.answer(here):
            if isinstance(answer, Exception):
                yield client, answer
            else:
                out = here[client].out
                memory = out if isinstance(out, MemoryRecords) and answer.error is None else None
                yield client, replace(answer, memory=memory)

    def count(self, server_round: int, clients: Sequence[int]) -> None:
        """Their runners know it from then on."""
        self._runners.aggregated_rounds.update(dict.fromkeys(clients, server_round))

    def on_warning(self, warn: Callable[[str], None]) -> None:
        """Why clients do not train at once."""
        self._at_once.warn = warn

    def save(self, folder: Path, clients: Sequence[int]) -> list[int]:
        return self._runners.save(folder, clients)

    def restore(self, states: Mapping[int, Path]) -> None:
        self._runners.restore(states)

    def close(self) -> None:
        """Remove the states of clients that are not in memory."""
        shutil.rmtree(self._runners.folder, ignore_errors=True)

    def runner(self, client: int) -> ClientRunner:
        """The runner of a client."""
        return self._runners.of(client)


def _here(task: PlainTask) -> PlainTask | _InlineTask:
    """The task with its reply in memory if that is likely to be small: a whole cohort sends one each."""
    if task.content.stat().st_size > MOST_IN_MEMORY:
        return task
    return _InlineTask(task=task.task, content=task.content)
