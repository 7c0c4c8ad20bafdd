"""The files of one run: models that come from its ServerApp, the exchanges' folders, and the model that is left."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from fedcore.errors import RunFailed, WorkerDied
from fedcore.flower.app import AppBundle
from fedcore.state import sha256_file
from fedcore.system.left_files import remove_left
from fedcore.wire import ModelRef
from server_app.runs.app_files import keep_app_files

MODEL_FILE: Final = "model.safetensors"
APP_FOLDER: Final = "app"
EXCHANGES: Final = "exchanges"
_HANDED: Final = "models"


class RunFiles:
    """Keeps track of what may be removed.

    folder: the run's. work: where its ServerApp leaves models, the one place that it may write to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.work = folder / "work"
        self._leftovers: list[Path] = []

    def check_app(self, sha256: str) -> None:
        """Whether the copy of the app is what was submitted, and nothing else; raises RunFailed."""
        if AppBundle.from_copy(self._folder / APP_FOLDER).sha256 != sha256:
            raise RunFailed("the server's copy of the app was changed since the run was submitted; submit it again")

    def from_app(self, path: str) -> Path:
        """Take over a file that the app made in its work folder, and say where it is now; raises WorkerDied.

        It is moved before it is looked at: in the work folder the app could put a link to one of the server's files
        in its place.
        """
        handed = self._folder / _HANDED
        handed.mkdir(mode=0o700, exist_ok=True)
        target = handed / secrets.token_hex(8)
        try:
            os.rename(self.work / Path(path).name, target)
            is_file = Path(path).parent == self.work and stat.S_ISREG(target.lstat().st_mode)
        except OSError:
            is_file = False
        if not is_file:
            _remove([target])
            raise WorkerDied("the ServerApp's process named something that is no file of its folder")
        return target

    def exchange_folder(self, exchange: int) -> Path:
        """A new folder for the files of an exchange."""
        folder = self._folder / EXCHANGES / str(exchange)
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

    async def keep_app_files(self) -> int:
        """The app is gone: keep what it left for its operator; how many files were left out. Raises StorageFull."""
        return await asyncio.to_thread(keep_app_files, self._folder, self.work)

    async def remove_temporary(self) -> None:
        """The run has ended: only its app, its model and what its app left stay."""
        await asyncio.to_thread(_remove, [self.work, self._folder / _HANDED, self._folder / EXCHANGES])


async def reference(path: Path) -> ModelRef:
    """What clients are told of a model that they are to fetch."""
    return await asyncio.to_thread(lambda: ModelRef(sha256=sha256_file(path), size=path.stat().st_size))


def _remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            remove_left(path)
        else:
            path.unlink(missing_ok=True)
