"""Uploaded bodies: spooled, checked, made durable, and only then given a name.

Until the rename nothing refers to a spooled file, so a broken upload, a full disk or a killed server
leaves at most a nameless file in the spool, which the next start removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedcore.errors import StorageFull
from fedcore.system.concurrency import in_thread
from fedcore.system.files import full_disk_named, sync_folder
from fedcore.wire.problems import ProblemKind
from server_app.rejection import Rejection

WRITE_BYTES: Final = 512 * 1024
_FULL_TEXT: Final = "the server's disk is full; nothing was taken over. Send it again once there is room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A request's body that is still to be read.

    chunks
        Its bytes as they come.
    size
        How many there are.
    sha256
        Of all of them.
    """

    chunks: AsyncIterator[bytes | memoryview]
    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """A folder for files that are not complete, on the same file system as their targets.

    folder
        The folder.
    reserve_bytes
        Disk space that no body may use.
    """

    folder: Path
    reserve_bytes: int

    def clear(self) -> int:
        """Remove what an earlier process left behind; how many files that was."""
        self.folder.mkdir(parents=True, exist_ok=True)
        leftovers = list(self.folder.iterdir())
        for path in leftovers:
            path.unlink()
        return len(leftovers)

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes more would leave the reserve alone."""
        return shutil.disk_usage(self.folder).free >= size + self.reserve_bytes

    def check_room(self, size: int) -> None:
        """Raise StorageFull unless there is room for `size` bytes more."""
        if not self.has_room(size):
            raise StorageFull(_FULL_TEXT)

    def create(self) -> Path:
        """An empty file."""
        with full_disk_named(_FULL_TEXT):
            descriptor, name = tempfile.mkstemp(dir=self.folder)
        os.close(descriptor)
        return Path(name)

    def unused(self) -> Path:
        """A path below the folder that no file has."""
        return self.folder / secrets.token_hex(8)

    async def write(self, path: Path, offset: int, body: Body, *, progress: Callable[[], None] = lambda: None) -> None:
        """Write a body of exactly its size and SHA-256 into an existing file, from `offset` on.

        `progress` is called after each written block. Raises Rejection (too-large, malformed,
        digest-mismatch) and StorageFull; whatever is raised, the file's bytes there are worth nothing.
        """
        # Opened at once, not in a thread: the caller has just checked that the file is still needed.
        descriptor = os.open(path, os.O_WRONLY)
        try:
            with full_disk_named(_FULL_TEXT):
                await _Sink(descriptor, offset, body, progress).take()
        finally:
            os.close(descriptor)

    async def publish(self, path: Path, target: Path, *, size: int) -> None:
        """Cut a file to `size` bytes, make it durable, and move it to `target`. Raises StorageFull."""
        with full_disk_named(_FULL_TEXT):
            await asyncio.to_thread(_publish, path, target, size)

    async def cut(self, path: Path, size: int) -> None:
        """Cut a file to its first `size` bytes; one that is gone, since it was moved, stays as it is."""
        with full_disk_named(_FULL_TEXT), contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(os.truncate, path, size)


class _Sink:
    """Collects chunks to blocks of WRITE_BYTES at least; hashes and writes each in a thread."""

    def __init__(self, descriptor: int, offset: int, body: Body, progress: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._offset = offset
        self._body = body
        self._progress = progress
        self._hash = hashlib.sha256()
        self._received = 0

    async def take(self) -> None:
        block: list[bytes | memoryview] = []
        size, block_bytes = self._body.size, 0
        async for chunk in self._body.chunks:
            self._received += len(chunk)
            if self._received > size:
                raise Rejection(ProblemKind.TOO_LARGE, f"the body has more than the {size} bytes announced")
            block.append(chunk)
            block_bytes += len(chunk)
            if block_bytes >= WRITE_BYTES:
                await self._flush(block)
                block, block_bytes = [], 0
        await self._flush(block)
        if self._received < size:
            raise Rejection(ProblemKind.MALFORMED, f"the body ended before the {size} bytes announced")
        if self._hash.digest() != self._body.sha256:
            raise Rejection(ProblemKind.DIGEST_MISMATCH, "the body does not have the SHA-256 that was signed")

    async def _flush(self, block: list[bytes | memoryview]) -> None:
        if block:
            # The descriptor is closed next, and its number may soon be another file's.
            await in_thread(self._write, block)
        self._progress()

    def _write(self, block: list[bytes | memoryview]) -> None:
        for chunk in block:
            self._hash.update(chunk)
            write_all(self._descriptor, chunk, self._offset)
            self._offset += len(chunk)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`; the one place where a body's bytes reach the disk."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def _publish(path: Path, target: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(path, target)
    sync_folder(target.parent)


def discard(path: Path) -> None:
    """Remove a file that is no longer needed; quick enough for the event loop."""
    path.unlink(missing_ok=True)


def link(path: Path, target: Path) -> None:
    """Give a file a second name; a copy if its file system has no links. Raises StorageFull and OSError."""
    try:
        os.link(path, target)
    except OSError:
        with full_disk_named(_FULL_TEXT):
            shutil.copyfile(path, target)
