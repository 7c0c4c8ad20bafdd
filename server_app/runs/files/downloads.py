"""The files that clients of a run fetch: the models of `fedcore.run.engine.downloads`, and differences to them.

Where a model is the mean that the last exchange gave, clients that have the model before can have the change that led
from it (`fedcore.codec.means.change`): it is the same model, to the bit, in fewer bytes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from fedcore.run.engine.downloads import ModelChain
from fedcore.state import ModelState, can_differ, write_difference
from fedcore.wire.tasks import ModelRef
from server_app.exchanges.context import Difference
from server_app.runs.files.run_files import RunFiles, reference


@dataclass(frozen=True, slots=True, kw_only=True)
class SentModel:
    """A model as clients get it.

    path
        The whole of it.
    reference
        What is announced of it.
    base
        The strategy's own model, if that is another.
    difference
        To the one that was sent before.
    """

    path: Path
    reference: ModelRef
    base: Path | None = None
    difference: Difference | None = None

    @property
    def fetched(self) -> int:
        """Bytes that a client fetches that does not have it."""
        return self.reference.size if self.difference is None else self.difference.path.stat().st_size


class ModelDownloads:
    """The models of one run, in one life of its ServerApp.

    files
        Of the run.
    bits
        32 for whole models, 16 for differences.
    """

    def __init__(self, files: RunFiles, bits: int) -> None:
        self._files = files
        self._bits = bits
        self._chain = ModelChain[SentModel]()
        self._change: Difference | None = None
        """That of the last exchange which was to make one."""
        self._mean = ""
        """SHA-256 of the mean that it makes."""

    async def send(self, model: Path, announced: ModelRef) -> SentModel:
        """What clients get of a model that the app handed over; for the same model the same again."""
        if self._bits == 32:
            change = self._change if announced.sha256 == self._mean else None
            return SentModel(path=model, reference=announced, difference=change)

        async def make(last: SentModel | None) -> SentModel:
            difference, copy = await self._files.sent_files(model)
            made = last is not None and await asyncio.to_thread(_write, last.path, model, difference, copy)
            before = Difference(base=last.reference.sha256, path=difference) if made and last is not None else None
            sent = SentModel(path=copy, reference=await reference(copy), difference=before)
            await self._files.keep_sent(copy, difference)
            return sent

        return replace(await self._chain.send(announced.sha256, make), base=model)

    async def change_file(self, sent: SentModel) -> Path | None:
        """Where the change that an exchange makes to a model goes; None if clients get differences in any case."""
        if self._bits != 32:
            return None
        self._mean, self._change = "", Difference(base=sent.reference.sha256, path=self._files.change_file())
        await self._files.keep_sent(*([sent.difference.path] if sent.difference is not None else []))
        return self._change.path

    def note_mean(self, sha256: str) -> None:
        """The mean that the last exchange gave: where a model is the same to the bit, its change takes its place."""
        if self._change is not None and not self._mean and self._change.path.exists():
            self._mean = sha256


def _write(base: Path, model: Path, difference: Path, copy: Path) -> bool:
    """Replace `copy`, the model itself, if there is a difference; whether that is the smaller file."""
    last, new = ModelState.open(base), ModelState.open(model)
    if not can_differ(last, new):
        return False
    write_difference(last, new, difference, copy)
    return difference.stat().st_size < copy.stat().st_size
