"""The files that clients of a run fetch: the models of `fedcore.run.engine.downloads`, and differences to them.

Clients with slow lines that have the model before get the same model, to the bit, in fewer bytes: where it is the mean
that the last exchange gave, the change that led to it (`fedcore.codec.means.change`), else the exact difference
(`fedcore.state.exact_difference`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fedcore.errors import StorageFull
from fedcore.run.engine.downloads import ModelChain
from fedcore.state import ModelState, can_differ, write_difference, write_exact_difference
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


@dataclass(slots=True)
class _AskedModel:
    """A model, and the clients that were asked to work with it; what they have is it or a later one."""

    sha256: str
    path: Path
    clients: frozenset[int] = frozenset()


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
        self._takes_means = True
        """Whether no other model came than a mean that has a change: else changes are made in vain."""
        self._newest: _AskedModel | None = None
        self._base: _AskedModel | None = None
        """The model before, as long as there may be an exact difference to it."""
        self._exact: Difference | None = None
        """That of the model of `_newest`."""

    async def send(self, model: Path, announced: ModelRef) -> SentModel:
        """What clients get of a model that the app handed over; for the same model the same again."""
        if self._bits == 32:
            is_mean = announced.sha256 == self._mean
            if self._mean and not is_mean:
                self._takes_means, self._mean, self._change = False, "", None
            return SentModel(path=model, reference=announced, difference=self._change if is_mean else None)

        async def make(last: SentModel | None) -> SentModel:
            difference, copy = await self._files.sent_files(model)
            made = last is not None and await asyncio.to_thread(_write, last.path, model, difference, copy)
            before = Difference(base=last.reference.sha256, path=difference) if made and last is not None else None
            sent = SentModel(path=copy, reference=await reference(copy), difference=before)
            await self._files.keep_sent(copy, difference)
            return sent

        return replace(await self._chain.send(announced.sha256, make), base=model)

    async def for_clients(
        self, sent: SentModel, clients: Collection[int], slow: Callable[[Collection[int]], frozenset[int]]
    ) -> SentModel:
        """The model as these clients get it: with an exact difference if one of them has a slow line and its base.

        slow
            Those of some clients whose lines are slow.
        """
        if self._bits != 32:
            return sent
        if self._newest is None or self._newest.sha256 != sent.reference.sha256:
            self._base, self._exact = self._newest, None
            self._newest = _AskedModel(sent.reference.sha256, await self._files.sent_copy(sent.path))
        self._newest.clients = self._newest.clients.union(clients)
        if sent.difference is not None:
            self._base = None
        elif self._base is not None:
            await self._try_exact(self._base, self._newest, slow(self._base.clients), clients)
        sent = replace(sent, difference=sent.difference or self._exact)
        await self._keep(sent)
        return sent

    async def _try_exact(
        self, base: _AskedModel, model: _AskedModel, slow: frozenset[int], clients: Collection[int]
    ) -> None:
        """Make it once one of the slow clients that have the base is asked; without such clients there is none."""
        if slow and slow.isdisjoint(clients):
            return
        self._base = None
        if slow:
            path = self._files.change_file()
            is_smaller = await asyncio.to_thread(_write_exact, base.path, model.path, path)
            self._exact = Difference(base=base.sha256, path=path) if is_smaller else None

    async def change_file(self, sent: SentModel) -> Path | None:
        """Where the change that an exchange makes to a model goes; None if it would be of no use."""
        if self._bits != 32 or not self._takes_means:
            return None
        self._mean, self._change = "", Difference(base=sent.reference.sha256, path=self._files.change_file())
        await self._keep(sent)
        return self._change.path

    async def _keep(self, sent: SentModel) -> None:
        """Remove what neither clients nor a later difference can need any more."""
        files = (self._newest, self._base, self._exact, self._change, sent.difference)
        await self._files.keep_sent(*(file.path for file in files if file is not None))

    def note_mean(self, sha256: str) -> None:
        """The mean that the last exchange gave: where a model is the same to the bit, its change takes its place."""
        if self._change is not None and not self._mean and self._change.path.exists():
            self._mean = sha256


def _write_exact(base: Path, model: Path, difference: Path) -> bool:
    """Whether there is one: it has to be clearly smaller than the model, and the disk needs room for it."""
    with suppress(StorageFull):
        return write_exact_difference(ModelState.open(base), ModelState.open(model), difference)
    return False


def _write(base: Path, model: Path, difference: Path, copy: Path) -> bool:
    """Replace `copy`, the model itself, if there is a difference; whether that is the smaller file."""
    last, new = ModelState.open(base), ModelState.open(model)
    if not can_differ(last, new):
        return False
    write_difference(last, new, difference, copy)
    return difference.stat().st_size < copy.stat().st_size
