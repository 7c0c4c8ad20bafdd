"""The files of one run: models that come from its ServerApp, the exchanges' folders, and the model that is left."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Final

from fedcore.errors import WorkerDied
from fedcore.state import sha256_file
from fedcore.wire import ModelRef

MODEL_FILE: Final = "model.safetensors"


class RunFiles:
    """Keeps track of what may be removed.

    folder: the run's. work: where its ServerApp leaves models.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.work = folder / "work"
        self._leftovers: list[Path] = []

    def from_app(self, path: str) -> Path:
        """The path of a file that the app made, which must lie in the work folder; raises WorkerDied."""
        resolved = Path(path).resolve()
        if resolved.parent != self.work.resolve() or not resolved.is_file():
            raise WorkerDied("the ServerApp's process named a file outside its folder")
        return resolved

    def exchange_folder(self, exchange: int) -> Path:
        """A new folder for the files of an exchange."""
        folder = self._folder / "exchanges" / str(exchange)
        folder.mkdir(parents=True)
        self.leave(folder)
        return folder

    def leave(self, path: Path) -> None:
        """A file or folder that may be removed once the next exchange begins."""
        self._leftovers.append(path)

    async def clean(self) -> None:
        """Remove the files of earlier exchanges: the app has mapped what it still needs."""
        gone, self._leftovers = self._leftovers, []
        await asyncio.to_thread(_remove, gone)

    async def keep_model(self, path: str | None) -> ModelRef | None:
        """Make the app's last model that of the run, if there is one."""
        await self.clean()
        if path is None:
            return None
        target = self._folder / MODEL_FILE
        self.from_app(path).replace(target)
        return await reference(target)

    async def remove_temporary(self) -> None:
        """The run has ended: only its app and its model stay."""
        await asyncio.to_thread(_remove, [self.work, self._folder / "exchanges"])


async def reference(path: Path) -> ModelRef:
    """What clients are told of a model that they are to fetch."""
    return await asyncio.to_thread(lambda: ModelRef(sha256=sha256_file(path), size=path.stat().st_size))


def _remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
