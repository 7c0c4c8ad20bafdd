"""An executor that says how far it is: a round of thousands takes minutes, and ends in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from fedcore.flower.apps.batched_clients import OnFailure, raise_failure
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.flower.clientside import Answer
from fedcore.simulation.workers.executor import ExecutorWrapper, PlainTask
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

T = TypeVar("T")

OnProgress: TypeAlias = Callable[[str, int, int], None]
"""Takes what clients work at, how many of them are done, and how many were asked."""


@dataclass(slots=True)
class ProgressExecutor(ExecutorWrapper):
    """Reports each result. It is no event: nothing of it is saved, and no tracker gets it."""

    tell: OnProgress

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        failed = 0

        def note(client: int, error: BaseException) -> None:
            nonlocal failed
            on_failure(client, error)
            failed += 1

        results = self.executor.run(task, model, clients, note)
        return self._reporting(f"round {task.server_round} {task.message_type}", len(clients), results, lambda: failed)

    def answer(self, tasks: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        one = next((one.task for one in tasks.values()), None)
        work = f"round {one.server_round} {one.message_type}" if one is not None else ""
        return self._reporting(work, len(tasks), self.executor.answer(tasks))

    def _reporting(
        self, work: str, expected: int, results: Iterator[T], failed: Callable[[], int] = lambda: 0
    ) -> Iterator[T]:
        self.tell(work, 0, expected)
        for done, result in enumerate(results, start=1):
            self.tell(work, done + failed(), expected)
            yield result
