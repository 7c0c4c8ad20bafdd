"""Upload of an update: a thread masks and hashes the next part while the parts before it are sent.

The parts come from a generator: `ClientSession.mask_parts` masks the next one in place, `read_parts` reads the next
one from a file. A part of a vector that lies in a file takes no memory once it is sent. The generator is always closed
at the end: a session whose update was not sent completely is abandoned.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_app.http.transport import Transport
from fedcore.state.mapped import give_back
from fedcore.system.concurrency import in_thread, tasks
from fedcore.wire.chunks import PART_BYTES, PARTS_IN_FLIGHT, update_digest
from fedcore.wire.uploads import PartsOut

Parts = Generator[memoryview, None, None]


@dataclass(frozen=True, slots=True)
class _UploadPart:
    index: int
    content: memoryview
    sha256: bytes


async def send_parts(transport: Transport, path: str, parts: Parts, *, size: int) -> str:
    """Send an update of `size` bytes, cut into parts of PART_BYTES, to the routes below `path`.

    Returns the digest for its manifest, in hex, once the server has all parts. One part is made ahead of the
    PARTS_IN_FLIGHT that are on the line. Raises what the transport and the parts raise.
    """
    digests: list[bytes] = []
    line = asyncio.Semaphore(PARTS_IN_FLIGHT)

    def make() -> _UploadPart | None:
        content = next(parts, None)
        return None if content is None else _UploadPart(len(digests), content, hashlib.sha256(content).digest())

    async def send(part: _UploadPart) -> None:
        try:
            await _send_part(transport, path, part, size)
            give_back(part.content)
        finally:
            line.release()

    try:
        async with tasks() as group:
            while (part := await in_thread(make)) is not None:
                digests.append(part.sha256)
                await line.acquire()
                group.create_task(send(part))
    finally:
        parts.close()
    return update_digest(size, digests).hex()


async def send_missing_parts(transport: Transport, path: str, parts: Parts, *, size: int) -> int:
    """Send again the parts of an update that the server has lost; returns how many those were."""
    answer = await transport.get(path, PartsOut, size=size)
    known, sent = answer.parts if answer is not None else {}, 0
    try:
        for index, content in enumerate(parts):
            sha256 = await in_thread(lambda part: hashlib.sha256(part).digest(), content)
            if known.get(index) != sha256.hex():
                await _send_part(transport, path, _UploadPart(index, content, sha256), size)
                sent += 1
            give_back(content)
    finally:
        parts.close()
    return sent


async def _send_part(transport: Transport, path: str, part: _UploadPart, size: int) -> None:
    async def is_there() -> bool:
        answer = await transport.get(path, PartsOut, size=size)
        return answer is not None and answer.parts.get(part.index) == part.sha256.hex()

    await transport.put_octets(f"{path}/{part.index}", part.content, sha256=part.sha256, is_there=is_there)


def cut_parts(words: NDArray[np.uint64]) -> Parts:
    """A masked vector, uint64 [d], in parts of PART_BYTES, little-endian; no copy is made of it."""
    for start in range(0, words.size, PART_BYTES // words.itemsize):
        yield words[start : start + PART_BYTES // words.itemsize].astype("<u8", copy=False).data.cast("B")


def read_parts(path: Path) -> Parts:
    """A file in parts of PART_BYTES."""
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            yield memoryview(part)
