"""The first model of a run, as this client derives it from the agreed app, once for a run.

What was derived stays in the state folder, so that neither a restart nor another exchange derives it again. What could
not be derived is remembered as long as the agent runs.

Next to it are the last models of each run that this client took part in: a run that failed in an exchange leaves a
model of which the transcript has no sum, and the next one begins with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from pydantic import Field, ValidationError

from client_app.exchange.models import MODELS_FOLDER, Models
from client_app.output import Output
from fedcore.data.statistics import message_statistics
from fedcore.federation.admission.first_model import NO_APP_MODEL, AppModel
from fedcore.flower.first_model.derive import derive
from fedcore.flower.first_model.messages import Derivation, FirstModel, FirstModelStart
from fedcore.run.settings import JobSettings
from fedcore.system.concurrency import end, in_thread
from fedcore.system.files import write_file
from fedcore.system.left_files import remove_left
from fedcore.system.sandbox.sandbox import Rules
from fedcore.wire.base import Message, Name, Sha256
from fedcore.wire.tasks import ModelRef, Task

Value = TypeVar("Value")
FIRST_MODELS_FILE: Final = "first-models.json"
_MOST: Final = 100
"""Runs that are remembered; the oldest is forgotten first."""
_DERIVED: Final = "derived"
"""The folder, next to the models, that a ServerApp writes its first one into."""
_LAST: Final = 2
"""Models of a run that are remembered."""


class FirstModels(Protocol):
    """Derives the first models of runs, and remembers their last ones."""

    async def of(self, task: Task, app_sha256: str, members: Sequence[int]) -> AppModel:
        """The model with which the run of a task begins, if it is the app's own.

        Args:
            task: of the run; an admitted one, so that its config and settings are agreed.
            app_sha256: hash of the installed app.
            members: ids of the federation's members.
        """
        ...

    async def last_models(self, run: str) -> frozenset[str]:
        """The last models of other runs than this one, out of the tasks that `note` got."""
        ...

    async def note(self, task: Task) -> None:
        """This client takes part in an exchange of a run whose beginning it traced."""
        ...


class NoFirstModels:
    """Derives none."""

    async def of(self, task: Task, app_sha256: str, members: Sequence[int]) -> AppModel:
        """None."""
        del task, app_sha256, members
        return NO_APP_MODEL

    async def last_models(self, run: str) -> frozenset[str]:
        """None."""
        del run
        return frozenset()

    async def note(self, task: Task) -> None:
        """Forgotten at once."""


class _Content(Message):
    """The file.

    models: by a hash over what a model was derived from, its SHA-256; the newest is the last.
    last: by run, the last models that this client took part with; likewise.
    """

    models: dict[Sha256, Sha256] = Field(default_factory=dict)
    last: dict[Name, list[Sha256]] = Field(default_factory=dict)


@dataclass(slots=True)
class DerivedModels:
    """Derives them in a process of their own.

    state_dir: the client's, with the installed apps.
    output: where the owner reads what was derived.
    rules: what the owner adds to what user code may see.
    """

    state_dir: Path
    output: Output
    rules: Rules = field(default_factory=Rules)
    _failed: dict[str, AppModel] = field(default_factory=dict, init=False)
    _deriving: dict[str, asyncio.Task[AppModel]] = field(default_factory=dict, init=False)
    _content: _Content | None = field(default=None, init=False)
    """The file; None until it is read."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Of the one process that there is at a time, however many runs a server begins."""

    async def of(self, task: Task, app_sha256: str, members: Sequence[int]) -> AppModel:
        """As `FirstModels.of`; takes as long as the app's ServerApp takes to its first model.

        The derivation goes on if its caller is cancelled, so that a later attempt has its model.
        """
        statistics = message_statistics(task.configs)
        key = _key(task, app_sha256, statistics)
        async with self._lock:
            models = (await self._read()).models
        if key in models:
            return AppModel(sha256=models[key])
        if key in self._failed:
            return self._failed[key]
        if key not in self._deriving:
            start = _start(task, self.state_dir / "apps" / app_sha256, members, statistics)
            self._deriving[key] = asyncio.create_task(self._derive(key, start, task.model))
        return await asyncio.shield(self._deriving[key])

    async def aclose(self) -> None:
        """End what is still derived."""
        for deriving in list(self._deriving.values()):
            await end(deriving)

    async def _made(self, start: FirstModelStart, target: ModelRef | None) -> Derivation:
        """Derive the model, and keep it if it is the one that the client would download next."""
        models = Models(self.state_dir / MODELS_FOLDER)
        folder = models.folder / _DERIVED
        await in_thread(remove_left, folder)
        await in_thread(lambda: folder.mkdir(mode=0o700, parents=True))
        try:
            file = folder / "model"
            made = await derive(start.model_copy(update={"file": str(file)}), self.rules)
            if isinstance(made, FirstModel) and target is not None and made.sha256 == target.sha256:
                await in_thread(models.take, file, made.sha256)
            return made
        finally:
            await in_thread(remove_left, folder)

    async def _derive(self, key: str, start: FirstModelStart, target: ModelRef | None) -> AppModel:
        began = time.monotonic()
        try:
            async with self._turn:
                made = await self._made(start, target)
            seconds = round(time.monotonic() - began, 3)
            if not isinstance(made, FirstModel):
                self.output.warning("model", f"the app's first model cannot be derived: {made.reason}", seconds=seconds)
                self._failed[key] = AppModel(reason=made.reason)
                return self._failed[key]
            self.output.info("model", f"derived the app's first model, {made.sha256}", seconds=seconds)
            async with self._lock:
                models = _newest({**(await self._read()).models, key: made.sha256})
                await self._write(models=models)
            return AppModel(sha256=made.sha256)
        finally:
            del self._deriving[key]

    async def last_models(self, run: str) -> frozenset[str]:
        """As `FirstModels.last_models`."""
        async with self._lock:
            content = await self._read()
        return frozenset(model for other, models in content.last.items() if other != run for model in models)

    async def note(self, task: Task) -> None:
        """As `FirstModels.note`."""
        if not task.model_sha256 or task.queries:
            return
        async with self._lock:
            content = await self._read()
            before = content.last.get(task.run, [])
            models = [*(model for model in before if model != task.model_sha256), task.model_sha256][-_LAST:]
            if models != before:
                others = {run: known for run, known in content.last.items() if run != task.run}
                last = _newest({**others, task.run: models})
                await self._write(last=last)

    @property
    def _path(self) -> Path:
        return self.state_dir / FIRST_MODELS_FILE

    async def _read(self) -> _Content:
        """The content of the file, which nobody else writes."""
        if self._content is None:
            try:
                self._content = _Content.model_validate_json(await in_thread(self._path.read_bytes))
            except (OSError, ValidationError):  # then it is derived again
                self._content = _Content()
        return self._content

    async def _write(self, **changes: Any) -> None:
        content = (await self._read()).model_copy(update=changes)
        await in_thread(write_file, self._path, content.model_dump_json(), mode=0o600)
        self._content = content


def _newest(runs: Mapping[str, Value]) -> dict[str, Value]:
    return dict(list(runs.items())[-_MOST:])


def _start(task: Task, app: Path, members: Sequence[int], statistics: Mapping[str, Any]) -> FirstModelStart:
    """What the server tells its process of the run, out of what the task says."""
    settings = JobSettings.from_mapping(task.settings, where="the task's settings")
    return FirstModelStart.of(
        settings,
        app=str(app),
        app_sha256=task.app_sha256,
        run=task.run,
        run_config=task.run_config,
        aggregation=task.aggregation,
        least_groups=settings.groups,  # too few of them are the server's to refuse
        members=len(members),
        nodes=list(members),
        statistics=dict(statistics),
    )


def _key(task: Task, app_sha256: str, statistics: Mapping[str, Any]) -> str:
    parts = [app_sha256, task.run, dict(task.run_config), dict(task.settings), dict(statistics)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
