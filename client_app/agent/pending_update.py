"""What this client has in hand of a buffered run: it trains now, for a sum that comes later (docs/asynchrony.md).

The update outlives the agent: in the state folder `work/held.json` says what it is, beside it lies the state that the
ranks left, and the model that it began from is in `models/work`. It is given to one sum, ever. Once the shares for that
have left this machine it is kept for the very same sum only, which may be asked for again where it stayed closed
(`fedcore.federation.admission.releases`), and goes with the next task about anything else, or with the agent.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from client_app.ranks.messages import LocalAnswer
from fedcore.errors import FedcoreError
from fedcore.state import ModelState
from fedcore.system.files import write_file
from fedcore.wire.control import Message, Task, Version, WorkIn, WorkState

WORK_FOLDER: Final = "work"


class _Held(Message):
    """An update. task: what was asked for. answer: what the app gave; None where it failed, which nobody is told.

    spent: whether shares for a sum with it have left this machine.
    """

    task: Task
    answer: LocalAnswer | None
    spent: bool = False


class HeldUpdate:
    """The one piece of work of a client: it has none, it trains, or it holds what it made.

    ranks: held by whoever uses the ranks, which do one thing at a time. base: where the model that the work begins from
    is put. local: where the ranks leave what they make of it.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / WORK_FOLDER
        self._models = state_dir / "models" / WORK_FOLDER
        self._file = self._folder / "held.json"
        self.base: Final = self._models / "base.safetensors"
        self.local: Final = self._folder / "local.safetensors"
        self.ranks: Final = asyncio.Lock()
        self.training: Task | None = None
        self._held = self._read()
        if self._held is None or self._held.spent:
            self.forget()

    @property
    def task(self) -> Task | None:
        """What the update that is held was made for."""
        return self._held.task if self._held else None

    @property
    def answer(self) -> LocalAnswer | None:
        """What the app gave; None where nothing is held, or it failed."""
        return self._held.answer if self._held else None

    def start(self, run: str) -> Version | None:
        """What the update that this client can give to a sum of the run began from; None where it has none."""
        return self._held.task.version if self._held is not None and self._held.task.run == run else None

    def told(self) -> WorkIn | None:
        """What the server is told of it; None where this client has nothing in hand."""
        if self.training is not None:
            return work_in(self.training, WorkState.TRAINING)
        return work_in(self._held.task, WorkState.READY) if self._held and not self._held.spent else None

    def begin(self, task: Task) -> None:
        """Train for this task; what was held is gone."""
        self.forget()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._models.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.training = task

    def keep(self, answer: LocalAnswer | None) -> None:
        """The training has ended with this, or failed: hold it, durably."""
        assert self.training is not None  # noqa: S101 - it has begun
        if answer is not None:
            _sync(self.local)
            _sync(self.base)
        self._write(_Held(task=self.training, answer=answer))
        self.training = None

    def spend(self) -> None:
        """Shares for a sum with it have left this machine."""
        if self._held is not None:
            self._write(self._held.model_copy(update={"spent": True}))

    def make_way(self, task: Task) -> None:
        """The server asks for something: a spent update stays for a sum of its own run only."""
        held = self._held
        if held is not None and held.spent and not (task.buffer is not None and task.run == held.task.run):
            self.forget()

    def forget(self) -> None:
        """Have nothing in hand."""
        self.training = self._held = None
        self._file.unlink(missing_ok=True)  # first: without it the rest means nothing
        for folder in (self._folder, self._models):
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, held: _Held) -> None:
        write_file(self._file, held.model_dump_json(), mode=0o600, durable=True)
        self._held = held

    def _read(self) -> _Held | None:
        """What an earlier start of the agent left; None for nothing, or for what cannot be used."""
        try:
            held = _Held.model_validate_json(self._file.read_bytes())
            if held.answer is not None:
                ModelState.open(self.base), ModelState.open(self.local)
        except (OSError, ValidationError, FedcoreError):
            return None
        return held


def work_in(task: Task, state: WorkState) -> WorkIn:
    """What the server is told of the work that it gave."""
    assert task.version is not None  # noqa: S101 - the task of a piece of work
    return WorkIn(run=task.run, version=task.version, state=state)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
