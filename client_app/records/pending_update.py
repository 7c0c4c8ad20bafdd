"""The pending update of an asynchronous run, persisted until it is aggregated (docs/asynchrony.md).

The update outlives the agent. In the state folder `work/held.json` describes it; the state that the ranks left is in
the same folder, and the model that the training started from is in `models/work`. It goes into one sum, ever. Once the
shares for that sum have left this machine it is kept for the very same sum only, which the server may request again if
it stayed closed (`fedcore.federation.admission.releases`). The next task about anything else discards it, and so does
a restart.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final

from client_app.ranks.messages import LocalAnswer
from client_app.records.journal import with_sum, without_sum
from fedcore.errors import FedcoreError
from fedcore.state import ModelState
from fedcore.state.files import sha256_file
from fedcore.system.files import write_file
from fedcore.wire.base import Message, Sha256
from fedcore.wire.presence import WorkIn, WorkState
from fedcore.wire.tasks import Task, Version

WORK_FOLDER: Final = "work"


class _SavedUpdate(Message):
    """The content of `held.json`."""

    task: Task
    answer: LocalAnswer | None
    """What the app returned; None if it failed, which stays on this machine."""
    spent: bool = False
    """Whether shares for a sum with it have left this machine."""
    local_sha256: Sha256 | None = None
    """Of the model that the ranks made, as it was written; None without one, and from before version 0.2.0."""


class PendingUpdate:
    """The one piece of background work of a client: none, in training, or trained and waiting for a sum."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / WORK_FOLDER
        self._models = state_dir / "models" / WORK_FOLDER
        self._file = self._folder / "held.json"
        self.base: Final = self._models / "base.safetensors"
        """The model that the training starts from."""
        self.local: Final = self._folder / "local.safetensors"
        """The model that the ranks make of it."""
        self.ranks: Final = asyncio.Lock()
        """Taken while the ranks work, since they do one thing at a time."""
        self.training: Task | None = None
        self._saved = self._read()
        if self._saved is None or self._saved.spent:
            self.discard()

    @property
    def task(self) -> Task | None:
        """The task that the saved update was trained for."""
        return self._saved.task if self._saved else None

    @property
    def answer(self) -> LocalAnswer | None:
        """What the app returned; None if no update is saved, or the app failed."""
        return self._saved.answer if self._saved else None

    def base_version(self, run: str) -> Version | None:
        """The model version that the update for a sum of this run started from; None without such an update."""
        return self._saved.task.version if self._saved is not None and self._saved.task.run == run else None

    def status_message(self) -> WorkIn | None:
        """The message that tells the server about it; None if there is nothing to tell."""
        if self.training is not None:
            return work_status(self.training, WorkState.TRAINING)
        return work_status(self._saved.task, WorkState.READY) if self._saved and not self._saved.spent else None

    def begin(self, task: Task) -> None:
        """Discard what was saved; the training for this task starts."""
        self.discard()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._models.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.training = task

    def save(self, answer: LocalAnswer | None) -> None:
        """Save the result of the training durably; None if it failed."""
        assert self.training is not None  # noqa: S101 - it has begun
        digest = None
        if answer is not None:
            _sync(self.local)
            _sync(self.base)
            digest = sha256_file(self.local)
        self._write(_SavedUpdate(task=self.training, answer=answer, local_sha256=digest))
        self.training = None

    def mark_spent(self) -> None:
        """Note that shares for a sum with it are about to leave this machine."""
        if self._saved is not None:
            self._write(self._saved.model_copy(update={"spent": True}))

    def evict_for(self, task: Task) -> None:
        """Discard a spent update, unless the server's task is about another sum of its run."""
        saved = self._saved
        if saved is not None and saved.spent and not (task.buffer is not None and task.run == saved.task.run):
            self.discard()

    def discard(self) -> None:
        """Delete the update, saved or in training."""
        self.training = self._saved = None
        self._file.unlink(missing_ok=True)  # first: without it the rest means nothing
        for folder in (self._folder, self._models):
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, update: _SavedUpdate) -> None:
        write_file(self._file, with_sum(update.model_dump_json().encode()), mode=0o600, durable=True)
        self._saved = update

    def _read(self) -> _SavedUpdate | None:
        """What an earlier start of the agent saved; None if it saved nothing, or the disk has changed it since."""
        try:
            saved = _SavedUpdate.model_validate_json(without_sum(self._file.read_bytes()))
            if saved.answer is not None:
                ModelState.open(self.base), ModelState.open(self.local)
                if saved.local_sha256 and sha256_file(self.local) != saved.local_sha256:
                    return None
                if saved.task.version is not None and sha256_file(self.base) != saved.task.version.sha256:
                    return None
        except (OSError, ValueError, FedcoreError):
            return None
        return saved


def work_status(task: Task, state: WorkState) -> WorkIn:
    """The message that tells the server how its work is getting on."""
    assert task.version is not None  # noqa: S101 - the task of a piece of work
    return WorkIn(run=task.run, version=task.version, state=state)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
