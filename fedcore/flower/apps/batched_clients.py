"""Runs one task for many clients of a process, batched if that gives the same results as one by one.

Only an app of `supervised_app` says beforehand how it will train (`SupervisedApp.plan`); whatever else is in an app is
run as it is, one client after the other. So are clients that have nothing to share: a group is those that follow one
another, with examples of one shape.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fedcore.errors import ConfigurationError
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.flower.clientside import Answer, ClientRunner, LocalContent, LocalTask
from fedcore.state import ModelState
from fedcore.wire.record_file import RecordLocation
from fedcore.wire.tasks import Task

if TYPE_CHECKING:
    from fedcore.flower.apps.supervised_batches import SupervisedBatches


OnFailure: TypeAlias = Callable[[int, BaseException], None]
"""Takes what a client's app raised; if it returns, the client has no result, and the others go on."""


def raise_failure(client: int, error: BaseException) -> None:
    """Let it end all."""
    raise error


class ClientMessage(Protocol):
    """A message of a plain exchange to one client: its content, a record file, and where its reply goes."""

    @property
    def task(self) -> Task: ...

    @property
    def content(self) -> Path: ...

    @property
    def out(self) -> RecordLocation: ...


def ignore_line(line: str) -> None:
    """A `warn` that drops the reason."""


@dataclass(slots=True, kw_only=True)
class BatchedClients:
    """Runs tasks for clients whose runners are in this process.

    runner: of a client.
    at_once: how many clients train at once, 1 for one by one, 0 for as many as pay.
    warn: hears once why clients train one by one: always if both ways differ, otherwise only if at_once is
        greater than 1.
    """

    runner: Callable[[int], ClientRunner]
    at_once: int = 0
    warn: Callable[[str], None] = ignore_line
    _together: SupervisedBatches | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.at_once < 0:
            raise ConfigurationError(f"clients at once cannot be {self.at_once}; 0 means as many as pay, 1 one by one")

    def size(self, task: Task, clients: Sequence[int]) -> int:
        """How many of these clients would be worked on at a time; 1 if the app does not allow more."""
        together = self._together_for(task, clients)
        return 1 if together is None else together.size(task.run_config, trains=task.trains)

    def run(
        self,
        task: Task,
        model: ModelState | None,
        clients: Sequence[int],
        on_failure: OnFailure = raise_failure,
    ) -> Iterator[tuple[int, LocalResult]]:
        """What each client's app makes of the task, in their order; clients that train at once share their seconds.

        on_failure
            Takes what `ClientRunner.run` raises.
        """
        together = self._together_for(task, clients) if model is not None else None
        for chunk in _chunks(clients, together, task):
            started, done = time.monotonic(), dict[int, LocalResult]()
            if together is not None and model is not None:
                jobs = {client: self.runner(client).job(task) for client in chunk}
                done = together.work(jobs, model, trains=task.trains)
            share = (time.monotonic() - started) / max(len(done), 1)
            for client in chunk:
                if client in done:
                    yield client, replace(done.pop(client), seconds=share)
                    continue
                started = time.monotonic()
                try:
                    made = self.runner(client).run(task, model)
                except (Exception, SystemExit) as error:  # an app may end its process
                    on_failure(client, error)
                else:
                    yield client, replace(made, seconds=time.monotonic() - started)

    def answer(self, messages: Mapping[int, ClientMessage]) -> Iterator[tuple[int, Answer | Exception]]:
        """What each client answers to its message, in their order; an exception of its app is an answer too."""
        for _, group in itertools.groupby(messages.items(), lambda one: (one[1].content, one[1].task.message_type)):
            alike = dict(group)
            client, first = next(iter(alike.items()))
            together = self._together_for(first.task, list(alike))
            content = self._read(client, first)
            for chunk in _chunks(list(alike), together, first.task):
                started = time.monotonic()
                local_tasks, done = self._answered(together, content, {client: alike[client] for client in chunk})
                share = (time.monotonic() - started) / max(len(done), 1)
                for client in chunk:
                    started = time.monotonic() - (share if client in done else 0.0)
                    prepared = local_tasks.get(client), done.pop(client, None)
                    answer = self._reply(client, alike[client], content, *prepared)
                    if isinstance(answer, Answer):
                        answer = replace(answer, seconds=time.monotonic() - started)
                    yield client, answer

    def _together_for(self, task: Task, clients: Sequence[int]) -> SupervisedBatches | None:
        """Batches the clients' work; None if it cannot be batched."""
        if self.at_once == 1 or len(clients) < 2:
            return None
        runner = self.runner(clients[0])
        app = runner.local_app(task)
        if self._together is None and app is not None:
            from fedcore.flower.apps.supervised_batches import (
                SupervisedBatches,  # brings torch, which the app has already
            )

            self._together = SupervisedBatches(app, runner.engine, at_once=self.at_once, warn=self.warn)
        return self._together if app is not None else None

    def _read(self, client: int, message: ClientMessage) -> LocalContent | Path:
        """The content that all get, read once for a `TensorApp`; as it is if a client will say what is wrong."""
        try:
            ours = self.runner(client).local_app(message.task) is not None
            return LocalContent.read(message.content) if ours else message.content
        except Exception:
            return message.content

    def _answered(
        self, together: SupervisedBatches | None, content: LocalContent | Path, messages: Mapping[int, ClientMessage]
    ) -> tuple[dict[int, LocalTask], dict[int, LocalResult]]:
        """What messages with one content ask, and the results that could be had together."""
        if together is None or isinstance(content, Path):
            return {}, {}
        first = next(iter(messages.values()))
        try:
            local_tasks = {i: self.runner(i).local_task(one.task, content) for i, one in messages.items()}
        except Exception:  # each client says by itself what is wrong
            return {}, {}
        jobs = {client: local_task.job for client, local_task in local_tasks.items()}
        return local_tasks, together.work(jobs, content.model, trains=first.task.trains)

    def _reply(
        self,
        client: int,
        message: ClientMessage,
        content: LocalContent | Path,
        local_task: LocalTask | None,
        result: LocalResult | None,
    ) -> Answer | Exception:
        try:
            if local_task is not None and result is not None:
                return self.runner(client).reply(local_task, result, message.out)
            return self.runner(client).answer(message.task, content, message.out)
        except Exception as error:
            return error


def _chunks(clients: Sequence[int], together: SupervisedBatches | None, task: Task) -> Iterator[Sequence[int]]:
    """The clients in their order, as many at a time as are worked on together."""
    size = 1 if together is None else together.size(task.run_config, trains=task.trains)
    for start in range(0, len(clients), size):
        yield clients[start : start + size]
