"""Bodies on their way to the disk: spooled, checked, made durable, and only then given a name.

Until the rename nothing refers to a spooled file, so a broken upload, a full disk or a killed server
leaves at most a nameless file in the spool, which the next start removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedcore.errors import StorageFull
from fedcore.wire import ProblemKind
from server_app.problems import Rejection

WRITE_BYTES: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_TEXT: Final = "the server's disk is full; nothing was taken over. Send it again once there is room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """A folder for bodies that are not complete; on the same file system as where they go.

    reserve_bytes: space on the disk that no body may use up.
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

    async def store(
        self,
        chunks: AsyncIterator[bytes],
        *,
        size: int,
        sha256: bytes,
        target: Path,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a body of exactly `size` bytes with that SHA-256 to `target`, durably.

        `progress` is called after each written block. Raises Rejection (too-large, malformed,
        digest-mismatch) and StorageFull; whatever is raised, nothing of the body is kept.
        """
        self._check_room(size)
        descriptor, name = tempfile.mkstemp(dir=self.folder)
        spooled = Path(name)
        try:
            await _Sink(descriptor, size, progress).take(chunks, sha256)
            await asyncio.to_thread(_publish, descriptor, spooled, target)
        except BaseException as error:
            _discard(spooled)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise StorageFull(_FULL_TEXT) from None
            raise
        finally:
            os.close(descriptor)

    def _check_room(self, size: int) -> None:
        if shutil.disk_usage(self.folder).free < size + self.reserve_bytes:
            raise StorageFull(_FULL_TEXT)


class _Sink:
    """Collects chunks to blocks of 1 MiB; hashes and writes each in a thread."""

    def __init__(self, descriptor: int, size: int, progress: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._size = size
        self._progress = progress
        self._hash = hashlib.sha256()
        self._received = 0

    async def take(self, chunks: AsyncIterator[bytes], sha256: bytes) -> None:
        block = bytearray()
        async for chunk in chunks:
            self._received += len(chunk)
            if self._received > self._size:
                raise Rejection(ProblemKind.TOO_LARGE, f"the body has more than the {self._size} bytes announced")
            block += chunk
            if len(block) >= WRITE_BYTES:
                await self._flush(block)
                block = bytearray()
        await self._flush(block)
        if self._received < self._size:
            raise Rejection(ProblemKind.MALFORMED, f"the body ended before the {self._size} bytes announced")
        if self._hash.digest() != sha256:
            raise Rejection(ProblemKind.DIGEST_MISMATCH, "the body does not have the SHA-256 that was signed")

    async def _flush(self, block: bytearray) -> None:
        if block:
            await asyncio.to_thread(self._write, block)
        self._progress()

    def _write(self, block: bytearray) -> None:
        self._hash.update(block)
        write_all(self._descriptor, block)


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write all of `data`; the one place where a body's bytes reach the disk."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(spooled: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        spooled.unlink()


def _publish(descriptor: int, spooled: Path, target: Path) -> None:
    os.fsync(descriptor)
    os.replace(spooled, target)
    sync_folder(target.parent)


def discard(path: Path) -> None:
    """Remove a file that nobody needs any more; quick enough for the event loop."""
    path.unlink(missing_ok=True)
