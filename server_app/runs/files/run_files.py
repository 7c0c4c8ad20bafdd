"""The files of one run: objects that outlive this process, and a folder of its own in which the ServerApp works."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fedcore.errors import RunFailed, WorkerDied
from fedcore.flower.app import AppBundle
from fedcore.state import ModelFacts, ModelState, sha256_file, write_model
from fedcore.system.files import write_file
from fedcore.system.left_files import remove_left
from fedcore.wire.tasks import ModelRef
from server_app.exchanges.at_rest import intact
from server_app.runs.app.files import save_app_files
from server_app.runs.files.checkpoints import Checkpoints
from server_app.storage.blobs import link
from server_app.storage.objects import Objects

APP_FOLDER: Final = "app"
ANSWERS: Final = "answers"
NO_MEANS: Final[Mapping[str, str]] = {}
_VERSIONS: Final = "versions"
_WORK: Final = "work"
_HANDED: Final = "handed"
_SENT: Final = "sent"


class RunKeys:
    """Where the objects of a run lie in the object store."""

    def __init__(self, run: str) -> None:
        self.all = f"runs/{run}"
        self.app = f"{self.all}/app"
        self.initial = f"{self.all}/initial"
        self.model = f"{self.all}/model"
        self.checkpoint = f"{self.all}/checkpoint"
        self.checkpoints = f"{self.all}/checkpoints"
        self.best = f"{self.all}/best"
        self.left = f"{self.all}/left"
        self.exchanges = f"{self.all}/exchanges"


class RunFiles:
    """Keeps track of what may be removed.

    folder: of this process, for this run; all of it is temporary. work: where its ServerApp leaves models, the one
    place that it may write to.
    """

    def __init__(self, objects: Objects, run: str, folder: Path) -> None:
        self._objects = objects
        self._keys = RunKeys(run)
        self._folder = folder
        self.app = folder / APP_FOLDER
        self.work = folder / _WORK
        self._leftovers: list[Path] = []
        self._checkpoint: tuple[str, ModelFacts, ModelRef] | None = None

    async def prepare(self, sha256: str) -> None:
        """Begin with an empty folder that holds the app, as it was submitted; raises RunFailed."""
        bundle = await load_bundle(self._objects, self._keys.app)
        if bundle is None or bundle.sha256 != sha256:
            raise RunFailed("the server's copy of the app was changed since the run was submitted; submit it again")
        await self.remove_temporary()
        await asyncio.to_thread(bundle.write, self.app)
        for name in (_WORK, _HANDED, _SENT, ANSWERS, _VERSIONS):
            (self._folder / name).mkdir(mode=0o700)

    async def initial(self, sha256: str) -> Path:
        """The model that the app's strategy starts from, where the app can read it; raises DamagedAtRest."""
        what = "the model that the run begins with"
        return await self.hand_over(
            await intact(self._objects, self._keys.initial, what, sha256, sha256_file), stays=True
        )

    def from_app(self, path: str) -> Path:
        """Take over a file that the app made in its work folder, and say where it is now; raises WorkerDied.

        It is moved before it is looked at: in the work folder the app could put a link to one of the server's files
        in its place.
        """
        target = self._folder / _HANDED / secrets.token_hex(8)
        try:
            os.rename(self.work / Path(path).name, target)
            is_file = Path(path).parent == self.work and stat.S_ISREG(target.lstat().st_mode)
        except OSError:
            is_file = False
        if not is_file:
            _remove([target])
            raise WorkerDied(
                "the ServerApp's process named something that is no file of its folder", check="foreign-file"
            )
        return target

    async def share_mean(self, model: Path, sha256: str, means: Mapping[str, str]) -> None:
        """Let a model that the app made take no room of its own if it is a mean that it was given, to the bit.

        With one reply an exchange that is what Flower's averages make of it.

        Args:
            sha256: of the model.
            means: SHA-256 of means -> the key of the object.
        """
        if sha256 not in means:
            return
        with contextlib.suppress(OSError, KeyError):  # another disk, or a file system without links
            mean = await self._objects.fetch(means[sha256])
            await asyncio.to_thread(_replace_by_link, mean, model)

    async def hand_over(self, path: Path, *, stays: bool = False) -> Path:
        """A file with the same content where the app may read it, until the next exchange unless it `stays`."""
        target = self._folder / ANSWERS / f"{secrets.token_hex(8)}.safetensors"
        await asyncio.to_thread(link, path, target)
        if not stays:
            self.leave(target)
        return target

    async def keep_version(self, number: int, model: Path) -> Path:
        """The same file where it stays for as long as clients of a buffered run train from it."""
        target = self._folder / _VERSIONS / f"{number}.safetensors"
        await asyncio.to_thread(link, model, target)
        return target

    async def remove(self, paths: Sequence[Path]) -> None:
        """Remove files that nobody needs any more."""
        await asyncio.to_thread(_remove, list(paths))

    async def sent_files(self, model: Path) -> tuple[Path, Path]:
        """Where a difference goes, and a file with the content of `model` to begin with, in a folder of their own."""
        copy = await self.sent_copy(model)
        return copy.with_suffix(".difference"), copy

    async def sent_copy(self, model: Path) -> Path:
        """A file with the content of `model` in that folder."""
        copy = self._folder / _SENT / secrets.token_hex(8)
        await asyncio.to_thread(link, model, copy)
        return copy

    def change_file(self) -> Path:
        """A new place for a change or an exact difference to a model, in the same folder."""
        return self._folder / _SENT / f"{secrets.token_hex(8)}.change"

    async def keep_sent(self, *paths: Path) -> None:
        """Remove all from that folder but these, once what clients get is made of the model before."""
        await self.remove([path for path in (self._folder / _SENT).iterdir() if path not in paths])

    def leave(self, path: Path) -> None:
        """A file or folder that may be removed once the next exchange begins."""
        self._leftovers.append(path)

    async def clean(self) -> None:
        """Remove the files of earlier exchanges: the app has mapped what it still needs."""
        paths, self._leftovers = self._leftovers, []
        await asyncio.to_thread(_remove, paths)

    async def keep_model(
        self, path: str | None, facts: ModelFacts, means: Mapping[str, str] = NO_MEANS
    ) -> ModelRef | None:
        """Make the app's last model that of the run, if there is one, in a file that says what `facts` say.

        Args:
            means: as in `share_mean`.
        """
        await self.clean()
        if path is None:
            return None
        model = self.from_app(path)
        self.leave(model)
        if means:
            await self.share_mean(model, await asyncio.to_thread(sha256_file, model), means)
        return await self._keep(model, facts, self._keys.model)

    async def keep_checkpoint(self, model: Path, sha256: str, facts: ModelFacts) -> ModelRef:
        """Keep a model, a file with this SHA-256 that nobody changes any more, as the newest that the run has.

        The model that a round evaluates is the one that the next round trains from: where all but the time is as in the
        last checkpoint, that one stays.
        """
        timeless = replace(facts, time="")
        last = self._checkpoint
        if last is None or last[:2] != (sha256, timeless):
            self._checkpoint = None
            stored = await checkpoints(self._objects, self._keys, self._folder / _HANDED).keep(model, facts)
            last = self._checkpoint = sha256, timeless, stored
        return last[2]

    async def keep_best(self, model: Path, facts: ModelFacts) -> ModelRef:
        """Keep a copy of a model as the best that the run has had."""
        return await self._keep(model, facts, self._keys.best)

    async def _keep(self, model: Path, facts: ModelFacts, key: str) -> ModelRef:
        copy = self._folder / _HANDED / secrets.token_hex(8)
        await asyncio.to_thread(lambda: write_model(ModelState.open(model), copy, facts))
        announced = await reference(copy)
        await self._objects.put(copy, key)
        return announced

    async def keep_app_files(self) -> int:
        """The app is gone: keep what it left for its operator; how many files were left out. Raises StorageFull."""
        return await save_app_files(self._objects, self._keys.left, self._folder, self.work)

    async def remove_temporary(self) -> None:
        """Remove all that is not kept as an object."""
        self._leftovers = []
        await asyncio.to_thread(_remove, [self._folder])


def checkpoints(objects: Objects, keys: RunKeys, drafts: Path) -> Checkpoints:
    """Those of a run; drafts: a folder for files on their way."""
    return Checkpoints(objects=objects, key=keys.checkpoints, earlier=keys.checkpoint, drafts=drafts)


async def save_bundle(objects: Objects, key: str, bundle: AppBundle, draft: Path) -> None:
    """Keep the files of an app as one object; draft: a file to be."""
    files = {path: base64.b64encode(content).decode() for path, content in bundle.files.items()}
    await asyncio.to_thread(write_file, draft, json.dumps(files), mode=0o600)
    await objects.put(draft, key)


async def load_bundle(objects: Objects, key: str) -> AppBundle | None:
    """The files of an app; None if there is no such object."""
    try:
        path = await objects.fetch(key)
    except KeyError:
        return None
    files = json.loads(await asyncio.to_thread(path.read_bytes))
    return AppBundle({name: base64.b64decode(content) for name, content in files.items()})


async def reference(path: Path) -> ModelRef:
    """The reference by which clients fetch a model."""
    return await asyncio.to_thread(lambda: ModelRef(sha256=sha256_file(path), size=path.stat().st_size))


def _replace_by_link(path: Path, target: Path) -> None:
    second = target.with_name(secrets.token_hex(8))
    os.link(path, second)
    os.replace(second, target)


def _remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            remove_left(path)
        else:
            path.unlink(missing_ok=True)
