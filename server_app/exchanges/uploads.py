"""Updates on their way in: spooled part by part, and of use to nobody before all parts of one are here.

Each client's update is one file in the spool, in which every part has its place. A part counts once all its bytes are
written and have the SHA-256 that was signed; until then its place may hold anything, and the next try writes over it.
Parts do not outlive the process. A whole update is an object, and once its receipt is kept too it survives a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.errors import ConflictingMessage
from fedcore.wire.chunks import PART_BYTES, PARTS_IN_FLIGHT, part_count, part_size, update_digest
from fedcore.wire.control import ManifestIn, ProblemKind
from server_app.http.problems import Rejection
from server_app.storage.blobs import Body, Spool, discard
from server_app.storage.objects import Objects


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateLimits:
    """How long an update of an exchange is: `longest` bytes, or up to that where it need not be `exact`."""

    longest: int
    exact: bool

    def check_size(self, size: int) -> None:
        """Raise Rejection unless an update can have `size` bytes."""
        self._check("the update", size, self.longest)

    def check_part(self, index: int, size: int) -> None:
        """Raise Rejection unless part `index` of an update can have `size` bytes."""
        self._check(f"part {index} of the update", size, part_size(self.longest, index))

    def _check(self, what: str, size: int, longest: int) -> None:
        if size > longest:
            raise Rejection(ProblemKind.TOO_LARGE, f"{what} has {longest} bytes at most in this exchange")
        if size < longest and (self.exact or not size):
            least = longest if self.exact else 1
            raise Rejection(ProblemKind.MALFORMED, f"{what} has {least} bytes at least in this exchange")


@dataclass(frozen=True, slots=True)
class _Part:
    size: int
    sha256: bytes


@dataclass(slots=True)
class _Incoming:
    """One client's update so far.

    path: its file, while it is ours to remove. slots: how many of its parts are read at the same time, which bounds the
    memory that one client can take. turns: so that a repeated part waits for the first. complete: the manifest has come
    and fits. publishing: the file is being moved.
    """

    path: Path | None = None
    held: dict[int, _Part] = field(default_factory=dict)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PARTS_IN_FLIGHT))
    turns: dict[int, asyncio.Lock] = field(default_factory=dict)
    complete: bool = False
    publishing: bool = False

    def being_written(self) -> int:
        """How many parts have been begun and are neither here nor refused."""
        return sum(turn.locked() for turn in self.turns.values())


class Uploads:
    """The updates of one exchange's clients, all of it on the event loop.

    folder: the key below which whole updates go, each by its client's number. Whoever made this removes them.
    """

    def __init__(self, spool: Spool, objects: Objects, folder: str, limits: UpdateLimits) -> None:
        self.limits = limits
        self._spool = spool
        self._objects = objects
        self._folder = folder
        self._incoming: dict[int, _Incoming] = {}
        self._closed = False

    def key(self, client: int) -> str:
        """The object that a client's whole update becomes."""
        return f"{self._folder}/{client}"

    def held(self, client: int) -> dict[int, bytes]:
        """The SHA-256 of every part that is here, by index."""
        incoming = self._incoming.get(client)
        return {index: part.sha256 for index, part in sorted(incoming.held.items())} if incoming else {}

    async def take(
        self, client: int, index: int, body: Body, *, admit: Callable[[], None], progress: Callable[[], None]
    ) -> None:
        """Spool one part.

        `admit` raises where the client may not send any more; it is asked whenever time has passed. Raises what it and
        `Spool.write` raise, Rejection for a part of a wrong size, ConflictingMessage for another than came before; and
        then nothing has changed.
        """
        if self._holds(client, index, body):
            return
        admit()
        self.limits.check_part(index, body.size)
        incoming = self._incoming.setdefault(client, _Incoming())
        async with incoming.turns.setdefault(index, asyncio.Lock()), incoming.slots:
            if self._holds(client, index, body):
                return
            admit()
            if incoming.complete:
                raise ConflictingMessage(f"the update was complete without a part {index}")
            here = sum(part.size for part in incoming.held.values())
            self._spool.check_room(self.limits.longest - here if self.limits.exact else body.size)
            await self._write(incoming, index, body, progress)
            admit()
            incoming.held[index] = _Part(body.size, body.sha256)
        incoming.turns.pop(index, None)

    def _holds(self, client: int, index: int, body: Body) -> bool:
        """Whether this very part is here; ConflictingMessage where another one is."""
        incoming = self._incoming.get(client)
        part = incoming.held.get(index) if incoming else None
        if part is not None and part.sha256 != body.sha256:
            raise ConflictingMessage(f"part {index} of the update came before with other content")
        return part is not None

    async def _write(self, incoming: _Incoming, index: int, body: Body, progress: Callable[[], None]) -> None:
        if incoming.path is None:
            incoming.path = self._spool.create()
        try:
            await self._spool.write(incoming.path, index * PART_BYTES, body, progress=progress)
        except BaseException:
            if not incoming.held and incoming.being_written() == 1:
                _forget_file(incoming)
            raise

    def check_whole(self, client: int, manifest: ManifestIn) -> None:
        """Raise Rejection unless the parts that are here are those of the manifest, and all of them."""
        incoming = self._incoming.get(client, _Incoming())
        if incoming.being_written():
            raise Rejection(ProblemKind.MALFORMED, "the manifest came while parts of the update were still being sent")
        count = part_count(manifest.size)
        if missing := [index for index in range(count) if index not in incoming.held]:
            detail = f"part {missing[0]} is missing; {len(missing)} of {count} parts have not come"
            raise Rejection(ProblemKind.PARTS_MISSING, detail)
        parts = [incoming.held[index] for index in range(count)]
        sizes = [part_size(manifest.size, index) for index in range(count)]
        if len(incoming.held) > count or [part.size for part in parts] != sizes:
            raise Rejection(ProblemKind.MALFORMED, f"the parts that came are not those of {manifest.size} bytes")
        if update_digest(manifest.size, (part.sha256 for part in parts)).hex() != manifest.digest:
            raise Rejection(ProblemKind.DIGEST_MISMATCH, "the parts that came do not have the digest of the manifest")

    async def publish(self, client: int, size: int) -> None:
        """Make an update durable that `check_whole` has passed. May be repeated after StorageFull and the like."""
        incoming = self._incoming[client]
        path = incoming.path
        if path is None:  # it is an object already
            return
        incoming.complete = incoming.publishing = True
        try:
            await self._spool.cut(path, size)
            await self._objects.put(path, self.key(client))
            incoming.path = None
        finally:
            incoming.publishing = False
            if self._closed or self._incoming.get(client) is not incoming:  # meanwhile
                _forget_file(incoming)

    def drop(self, client: int) -> None:
        """Forget a client's parts, and remove what is here of them."""
        incoming = self._incoming.pop(client, None)
        if incoming is not None and not incoming.publishing:
            _forget_file(incoming)

    def close(self) -> None:
        """The exchange has ended: remove what nobody took over."""
        self._closed = True
        for incoming in self._incoming.values():
            if not incoming.publishing:
                _forget_file(incoming)


def _forget_file(incoming: _Incoming) -> None:
    if incoming.path is not None:
        discard(incoming.path)
        incoming.path = None
