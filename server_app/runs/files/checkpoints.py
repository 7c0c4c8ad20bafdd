"""The newest model of a run that has not finished: its tensors take no room but that of the file that clients get.

A checkpoint is a link to the file of that model, and a record of what its own file says in addition to the tensors
(`ModelFacts`), with that file's SHA-256. The file is written once somebody asks for it, and stays until there is a
newer checkpoint. Link and file lie in a folder with a name of its own, since a server may not know yet that another one
leads. The record names the folder and is replaced last: whatever ends the process, there is one checkpoint, whole.
Where objects lie on another disk, the link is a copy.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedcore.errors import PeerError
from fedcore.state import ModelFacts, ModelState, write_model, written_as
from fedcore.system.files import write_file
from fedcore.wire.base import Message
from fedcore.wire.tasks import ModelRef
from server_app.storage.blobs import discard, link
from server_app.storage.objects import Objects

_TENSORS: Final = "tensors"
_TRIES: Final = 3


class CheckpointRecord(Message):
    """The newest checkpoint.

    folder: of its objects.
    before: the folder of the one before, which may be there still.
    metadata: of its file, in addition to the tensors.
    model: the reference of that file.
    """

    folder: str
    before: str
    metadata: dict[str, str]
    model: ModelRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Those of one run.

    key: the folder of their objects.
    earlier: the key of the file that fedcore 0.2.0 kept in their place.
    drafts: a folder for files on their way.
    """

    objects: Objects
    key: str
    earlier: str
    drafts: Path

    async def keep(self, model: Path, facts: ModelFacts) -> ModelRef:
        """Make a model the newest; the reference of its file. Raises StorageFull, StorageUnavailable."""
        last = await self._record()
        sha256, size = await asyncio.to_thread(lambda: written_as(ModelState.open(model), facts))
        record = CheckpointRecord(
            folder=secrets.token_hex(8),
            before=last.folder if last is not None else "",
            metadata=facts.to_metadata(),
            model=ModelRef(sha256=sha256, size=size),
        )
        await self._put(lambda draft: link(model, draft), f"{self.key}/{record.folder}/{_TENSORS}")
        text = record.model_dump_json()
        await self._put(lambda draft: write_file(draft, text, mode=0o600), self._record_key)
        if last is not None:
            for folder in filter(None, (last.before, last.folder)):
                await self.objects.remove(f"{self.key}/{folder}")
        await self.objects.remove(self.earlier)
        return record.model

    async def file(self) -> tuple[Path, ModelRef | None]:
        """The newest model in one file with its facts; KeyError if there is none.

        Returns:
            The file, and its reference; None for that of a file that fedcore 0.2.0 kept.
        """
        for _ in range(_TRIES):
            record = await self._record()
            if record is None:
                return await self.objects.fetch(self.earlier), None
            try:
                return await self._joined(record), record.model
            except (KeyError, FileNotFoundError):  # a newer one has taken its place
                continue
        raise KeyError(self.key)

    async def _joined(self, record: CheckpointRecord) -> Path:
        folder = f"{self.key}/{record.folder}"
        name = f"{folder}/{record.model.sha256}"
        try:
            return await self.objects.fetch(name)
        except KeyError:
            tensors, facts = await self.objects.fetch(f"{folder}/{_TENSORS}"), _facts(record)
        await self._put(lambda draft: write_model(ModelState.open(tensors), draft, facts), name)
        return await self.objects.fetch(name)

    async def _record(self) -> CheckpointRecord | None:
        try:
            path = await self.objects.fetch(self._record_key)
        except KeyError:
            return None
        return CheckpointRecord.model_validate_json(await asyncio.to_thread(path.read_bytes))

    async def _put(self, write: Callable[[Path], None], key: str) -> None:
        draft = self.drafts / secrets.token_hex(8)
        try:
            await asyncio.to_thread(write, draft)
            await self.objects.put(draft, key)
        finally:
            discard(draft)

    @property
    def _record_key(self) -> str:
        return f"{self.key}/record"


def _facts(record: CheckpointRecord) -> ModelFacts:
    facts = ModelFacts.from_metadata(record.metadata)
    if facts is None:
        raise PeerError("the record of the checkpoint has no facts")
    return facts
