"""The journal of a run (`fedcore.run.engine.journal`) in a folder.

`N.json` is a step: the request, the reply, and what else of the run has changed by then. It is put in place in one
rename, so that a process that is killed at any instant leaves it there or not. In `N` lie the models and records of the
reply, and what `N.json` refers to otherwise.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.run.engine.journal import JournalStep, JsonObject, digest_of
from fedcore.system.files import remove_tree, write_file


@dataclass(slots=True, kw_only=True)
class JournalFolder:
    """The steps of one run; a `JournalStore`, whose coroutines never suspend.

    save
        Gives what else of the run has changed since the last step; its large files go into the folder of the step.
    restore
        Takes in again what `save` gave, among request and reply, step by step.
    """

    path: Path
    save: Callable[[Path], JsonObject]
    restore: Callable[[JsonObject, Path], None]
    _request: JsonObject = field(default_factory=dict, init=False)

    @property
    def count(self) -> int:
        """How many steps there are."""
        return next(number for number in itertools.count() if not self._file(number + 1).exists())

    async def steps(self) -> list[JournalStep]:
        """All steps, from number 1 on; what a step has left that got no reply is removed."""
        steps = []
        for number in range(1, self.count + 1):
            step = json.loads(self._file(number).read_text())
            self.restore(step, self.folder(number))
            steps.append(JournalStep(request=step["request"], digest=digest_of(step["request"]), reply=step["reply"]))
        for path in list(self.path.iterdir()):
            if path.stem.isdigit() and int(path.stem) > len(steps):
                remove_tree(path)
        return steps

    async def open_step(self, number: int, digest: bytes, request: JsonObject) -> None:
        """Make the folder of a step; the request comes onto the disk with its reply."""
        self._request = request
        self.folder(number).mkdir()

    async def answer_step(self, number: int, reply: JsonObject) -> None:
        """Make request, reply and the state of the run durable."""
        step = {"request": self._request, "reply": reply, **self.save(self.folder(number))}
        write_file(self._file(number), json.dumps(step), durable=True)

    def folder(self, number: int) -> Path:
        """Where the files of a step lie."""
        return self.path / str(number)

    def _file(self, number: int) -> Path:
        return self.path / f"{number}.json"
