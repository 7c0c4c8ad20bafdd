"""What clients have in hand of the buffered run that is led: what they were given, and what they say of it.

All of it is in memory. What a client has is on the client's own disk, and it says so whenever it joins; so a server
that begins again, or takes over, hears from each of them again (docs/adr/0046). Whose updates were summed is in the
rows of the exchanges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from fedcore.run.buffer import WorkBook
from fedcore.wire.presence import WorkIn
from fedcore.wire.tasks import ModelRef, Task

_MOST_ENDED: Final = 16
"""Runs whose end is remembered, for clients that ask after it."""


@dataclass(slots=True)
class ClientWork:
    """Between the routes, which clients call, and `BufferedExchanges`, which leads.

    book
        Of the run that is led; None if it is not buffered.
    reports
        By client, what it reported last.
    """

    book: WorkBook | None = None
    reports: dict[int, WorkIn] = field(default_factory=dict)
    _run: str = ""
    _tasks: dict[int, Task] = field(default_factory=dict)
    _models: dict[int, Path] = field(default_factory=dict)
    _bytes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By client, sent and received for the work that it was given last."""
    _ended: deque[str] = field(default_factory=partial(deque, maxlen=_MOST_ENDED))

    # --- what the routes ask --------------------------------------------------------------------

    def join(self, client: int, work: WorkIn | None) -> None:
        """A client has started, or has found this server again; what it has in hand."""
        self.reports.pop(client, None)
        if work is not None:
            self.reports[client] = work

    def report(self, client: int, work: WorkIn) -> None:
        """A client says how its work stands."""
        self.reports[client] = work

    def task_of(self, client: int, run: str, number: int) -> Task | None:
        """The work that a client is to do; None if there is none, or if the client has it already.

        client
            Its number.
        run
            Run of the last version that the client took.
        number
            Number of that version.
        """
        task = self._tasks.get(client)
        if task is None or task.version is None or (task.run, task.version.number) == (run, number):
            return None
        return task

    def model_for(self, client: int, run: str, number: int) -> tuple[Path, ModelRef] | None:
        """The file of a version, for a client that was given it."""
        task, path = self._tasks.get(client), self._models.get(number)
        if task is None or path is None or task.model is None or task.version is None:
            return None
        return (path, task.model) if (task.run, task.version.number) == (run, number) else None

    def counter(self, client: int) -> Callable[[int, int], None]:
        """Where the guard enters a request of `client` that is about its work."""

        def enter(up: int, down: int) -> None:
            before = self._bytes.get(client, (0, 0))
            self._bytes[client] = before[0] + up, before[1] + down

        return enter

    def is_over(self, run: str) -> bool:
        """Whether a run has ended lately, so that its work is no longer needed."""
        return run in self._ended

    @property
    def busy(self) -> frozenset[int]:
        """Who trains, and has no ranks left for anything else."""
        return frozenset(self.book.training_clients) if self.book is not None else frozenset()

    # --- what the run's leader does -------------------------------------------------------------

    def open(self, run: str, book: WorkBook) -> None:
        """A buffered run is led from here on."""
        self.close()
        self._run, self.book = run, book

    def close(self) -> None:
        """It is led no more, or by another process. What clients reported stays: they do not report it again."""
        self._run, self.book = "", None
        self._tasks, self._models, self._bytes = {}, {}, {}

    def end(self, run: str) -> None:
        """A run has ended, and that is written down."""
        self._ended.append(run)

    def reports_of_run(self) -> list[tuple[int, WorkIn]]:
        """What clients have in hand of this run."""
        return [(client, work) for client, work in sorted(self.reports.items()) if work.run == self._run]

    def give(self, client: int, task: Task, model: Path) -> None:
        """Give a client a version to train from; `model` is its file."""
        assert task.version is not None  # noqa: S101 - the task of a piece of work
        self._tasks[client], self._models[task.version.number] = task, model
        self._bytes[client] = (0, 0)

    def take_away(self, client: int) -> None:
        """A client has done its work, or is to do it no more."""
        self._tasks.pop(client, None)

    def unneeded(self, newest: int) -> list[Path]:
        """Forget the versions that nobody trains from and that are not the newest; their files."""
        needed = {task.version.number for task in self._tasks.values() if task.version is not None} | {newest}
        return [self._models.pop(number) for number in list(self._models) if number not in needed]

    def bytes_of(self, client: int) -> tuple[int, int]:
        """Bytes that a client sent and received for its last update, before its sum."""
        return self._bytes.pop(client, (0, 0))
