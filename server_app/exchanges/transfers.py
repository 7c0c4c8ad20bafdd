"""Downloads and uploads of the clients of an exchange, which slow lines prolong and interrupt.

A client says how much of its model it has by its heartbeats: bytes that a server has handed on may lie in a buffer, or
come from a proxy. An upload is under way from its first part to its manifest, unless the client hung up: a line that
pauses says nothing, and a process that ends says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from starlette.requests import ClientDisconnect

from fedcore.errors import ConflictingMessage
from fedcore.monitoring import formatting as units
from fedcore.monitoring.line_speed import LineSpeed, granted_seconds
from fedcore.wire.chunks import PART_BYTES, PARTS_IN_FLIGHT, part_count, part_size, update_digest
from fedcore.wire.problems import ProblemKind
from fedcore.wire.uploads import ManifestIn
from server_app.rejection import Rejection
from server_app.storage.blobs import Body, Spool, discard
from server_app.storage.objects import Objects


class Transfer(Enum):
    """What may take long, and be interrupted."""

    DOWNLOAD = "download"
    UPLOAD = "upload"


@dataclass(slots=True)
class _Download:
    """A download of a model.

    size: its bytes.
    received: bytes, as the client said last; None before and after the download.
    changed: when that changed last.
    began: when the client asked for it.
    """

    size: int
    received: int | None
    changed: float
    began: float

    @property
    def speed(self) -> float | None:
        """Bytes a second up to its last progress; None before that."""
        return _speed(self.received, self.changed - self.began)


@dataclass(slots=True)
class _Upload:
    """An upload of an update.

    size: its bytes.
    began: when the first of them came.
    changed: when the last of them came.
    received: how many have come.
    hung_up: whether the client ended the connection, and has not come back.
    """

    size: int
    began: float
    changed: float
    received: int = 0
    hung_up: bool = False

    @property
    def speed(self) -> float | None:
        """Bytes a second up to its last progress; None before that."""
        return _speed(self.received, self.changed - self.began)


def _speed(received: int | None, seconds: float) -> float | None:
    return received / seconds if received and seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A transfer, as far as it has come: bytes, of so many in all, and seconds since its beginning."""

    what: Transfer
    received: int
    size: int
    seconds: float

    @property
    def speed(self) -> float:
        """Bytes a second."""
        return self.received / max(self.seconds, 1e-3)

    def __str__(self) -> str:
        received = units.size(min(self.received, self.size))  # a part that was sent again counts twice
        return f"{self.what.value}: {received} of {units.size(self.size)} in {self.seconds:.0f} s"


class Transfers:
    """Downloads and uploads of the clients that are under way.

    clock
        Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._downloads: dict[int, _Download] = {}
        self._uploads: dict[int, _Upload] = {}

    def start_download(self, client: int, size: int) -> None:
        """The client begins to download a model of so many bytes, or asks for the rest of it."""
        now = self._clock()
        self._downloads.setdefault(client, _Download(size, None, now, now)).size = size

    def note_progress(self, client: int, received: int | None) -> None:
        """Note the progress in a heartbeat: bytes of the model so far, None without a download."""
        known = self._downloads.get(client)
        if known is not None and known.received != received:
            known.received, known.changed = received, self._clock()

    @contextlib.contextmanager
    def receiving(self, client: int, size: int) -> Iterator[None]:
        """A part of the client's update is being received, which has `size` bytes in all."""
        self._downloads.pop(client, None)
        now = self._clock()
        upload = self._uploads.setdefault(client, _Upload(size, now, now))
        upload.hung_up = False
        try:
            yield
        except ClientDisconnect:
            upload.hung_up = True
            raise

    def note_sent(self, client: int, size: int) -> None:
        """So many more bytes of the client's update have come."""
        if (upload := self._uploads.get(client)) is not None:
            upload.received, upload.changed = upload.received + size, self._clock()

    def measure(self, client: int) -> Measure | None:
        """The transfer that the client is in the middle of, if any of it has come."""
        now, download, upload = self._clock(), self._downloads.get(client), self._uploads.get(client)
        if download is not None and download.received:
            seconds = now - download.began
            return Measure(what=Transfer.DOWNLOAD, received=download.received, size=download.size, seconds=seconds)
        if upload is not None and upload.received:
            seconds = now - upload.began
            return Measure(what=Transfer.UPLOAD, received=upload.received, size=upload.size, seconds=seconds)
        return None

    def end_upload(self, client: int) -> None:
        """The client has sent all of its update."""
        self._uploads.pop(client, None)

    def current(self, client: int) -> Transfer | None:
        """The transfer that the client is in the middle of, if any."""
        if self._received(client) is not None:
            return Transfer.DOWNLOAD
        upload = self._uploads.get(client)
        return Transfer.UPLOAD if upload is not None and not upload.hung_up else None

    def due(self, client: int, line: LineSpeed, most: float) -> float | None:
        """When the transfer of a client has to be complete, by the clock; None if it is in none.

        What counts is the slower of two speeds: that of the line as it is known, and that of this transfer up to its
        last progress. So a line that stands still gets no more time.

        Args:
            client: its number.
            line: how fast its line is.
            most: seconds, the longest that a transfer may take.
        """
        if (upload := self._uploads.get(client)) is not None:
            return upload.began + granted_seconds(upload.size, (line.up, upload.speed), most)
        if (download := self._downloads.get(client)) is not None:
            return download.began + granted_seconds(download.size, (line.down, download.speed), most)
        return None

    def seconds_to_model(self, client: int) -> float:
        """How long a client took to get its model, up to its last word of that; 0 if it asked for none."""
        download = self._downloads.get(client)
        return download.changed - download.began if download is not None else 0.0

    def why_late(self, client: int, size: int, seconds: float) -> str:
        """What delays a client whose time is up, and what to do; empty if it is in no transfer.

        client
            Its number.
        size
            Bytes of the model.
        seconds
            How long the client has had.
        """
        match self.current(client):
            case Transfer.DOWNLOAD:
                received = units.size(self._received(client) or 0)
                return (
                    f"its download of the model had come to {received} of {units.size(size)} after {seconds:.0f} s; "
                    "transfer-seconds gives more time, download-bits = 16 sends less, and adapters (LoRA) far less"
                )
            case Transfer.UPLOAD:
                return (
                    f"its upload was not complete after {seconds:.0f} s; transfer-seconds gives more time, field-bits, "
                    "upload-fraction and adapters (LoRA) make it smaller"
                )
        return ""

    def _received(self, client: int) -> int | None:
        known = self._downloads.get(client)
        return known.received if known is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateLimits:
    """How long an update of an exchange may be.

    longest
        Limit in bytes.
    exact
        Whether an update has to have just that size.
    """

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
class _StoredPart:
    size: int
    sha256: bytes


@dataclass(slots=True)
class _IncomingUpdate:
    """One client's update so far.

    path: its file, while it is ours to remove. slots: how many of its parts are read at the same time, which bounds the
    memory that one client can take. turns: so that a repeated part waits for the first. complete: the manifest has come
    and fits. publishing: the file is being moved.
    """

    path: Path | None = None
    parts: dict[int, _StoredPart] = field(default_factory=dict)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PARTS_IN_FLIGHT))
    turns: dict[int, asyncio.Lock] = field(default_factory=dict)
    complete: bool = False
    publishing: bool = False

    def being_written(self) -> int:
        """How many parts have been begun and are neither here nor refused."""
        return sum(turn.locked() for turn in self.turns.values())


class Uploads:
    """The updates of one exchange's clients, all of it on the event loop.

    folder: the key below which whole updates go, each by its client's number. The exchange removes them.
    """

    def __init__(self, spool: Spool, objects: Objects, folder: str, limits: UpdateLimits) -> None:
        self.limits = limits
        self._spool = spool
        self._objects = objects
        self._folder = folder
        self._incoming: dict[int, _IncomingUpdate] = {}
        self._closed = False

    def key(self, client: int) -> str:
        """The object that a client's whole update becomes."""
        return f"{self._folder}/{client}"

    def received(self, client: int) -> dict[int, bytes]:
        """The SHA-256 of every part received, by index."""
        incoming = self._incoming.get(client)
        return {index: part.sha256 for index, part in sorted(incoming.parts.items())} if incoming else {}

    async def take(
        self, client: int, index: int, body: Body, *, admit: Callable[[], None], progress: Callable[[], None]
    ) -> None:
        """Spool one part.

        client
            Its number.
        index
            Of the part.
        body
            Of the request.
        admit
            Raises if the client may not send any more. It is called again whenever time has passed.
        progress
            Called after each written block.

        Raises:
            Rejection: the part has a wrong size.
            ConflictingMessage: another part came before. In every case, as when `admit` or `Spool.write` raise, nothing
                has changed.
        """
        if self._holds(client, index, body):
            return
        admit()
        self.limits.check_part(index, body.size)
        incoming = self._incoming.setdefault(client, _IncomingUpdate())
        async with incoming.turns.setdefault(index, asyncio.Lock()), incoming.slots:
            if self._holds(client, index, body):
                return
            admit()
            if incoming.complete:
                raise ConflictingMessage(f"the update was complete without a part {index}")
            here = sum(part.size for part in incoming.parts.values())
            self._spool.check_room(self.limits.longest - here if self.limits.exact else body.size)
            await self._write(incoming, index, body, progress)
            admit()
            incoming.parts[index] = _StoredPart(body.size, body.sha256)
        incoming.turns.pop(index, None)

    def _holds(self, client: int, index: int, body: Body) -> bool:
        """Whether this very part is here; ConflictingMessage if another one is."""
        incoming = self._incoming.get(client)
        part = incoming.parts.get(index) if incoming else None
        if part is not None and part.sha256 != body.sha256:
            raise ConflictingMessage(f"part {index} of the update came before with other content")
        return part is not None

    async def _write(self, incoming: _IncomingUpdate, index: int, body: Body, progress: Callable[[], None]) -> None:
        if incoming.path is None:
            incoming.path = self._spool.create()
        try:
            await self._spool.write(incoming.path, index * PART_BYTES, body, progress=progress)
        except BaseException:
            if not incoming.parts and incoming.being_written() == 1:
                _forget_file(incoming)
            raise

    def check_whole(self, client: int, manifest: ManifestIn) -> None:
        """Raise Rejection unless the parts that are here are those of the manifest, and all of them."""
        incoming = self._incoming.get(client, _IncomingUpdate())
        if incoming.being_written():
            raise Rejection(ProblemKind.MALFORMED, "the manifest came while parts of the update were still being sent")
        count = part_count(manifest.size)
        if missing := [index for index in range(count) if index not in incoming.parts]:
            detail = f"part {missing[0]} is missing; {len(missing)} of {count} parts have not come"
            raise Rejection(ProblemKind.PARTS_MISSING, detail)
        parts = [incoming.parts[index] for index in range(count)]
        sizes = [part_size(manifest.size, index) for index in range(count)]
        if len(incoming.parts) > count or [part.size for part in parts] != sizes:
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
        """The exchange has ended: remove the updates that have not become objects."""
        self._closed = True
        for incoming in self._incoming.values():
            if not incoming.publishing:
                _forget_file(incoming)


def _forget_file(incoming: _IncomingUpdate) -> None:
    if incoming.path is not None:
        discard(incoming.path)
        incoming.path = None
