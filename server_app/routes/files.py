"""Files as bodies of requests and answers, 256 KiB at a time, with length and digest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from fedcore.system.concurrency import in_thread
from fedcore.wire.presence import DELTA_BASE
from fedcore.wire.tasks import ModelRef
from server_app.http.guard import SCOPE_KEY
from server_app.http.proxies import PROXY_KEY
from server_app.settings import ServerSettings

OCTETS = "application/octet-stream"
_OF_THE_BODY: Final = frozenset({"content-length", "accept-ranges"})
"""What nginx says of the file itself."""
_PATHSEND: Final = "http.response.pathsend"
"""An extension of ASGI: Starlette hands on a path in place of a file's bytes."""
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)


class OctetsResponse(FileResponse):
    """A file, 256 KiB at a time: Starlette's 64 KiB were measured to be 4.5 times slower than 1 MiB.

    What TLS has encrypted waits in memory for slow readers, and each connection keeps a buffer of that size.
    With eight clients, pieces of 1 MiB took 15 MiB more at the server than these, and no less time. A piece that is in
    memory, as a new model is, is read at once: a thread for each took eight times as long as to encrypt it.

    Where nginx stands in front and shares the data folder (`accel-location`), an answer without a body names the file,
    and nginx sends it by sendfile(2) (X-Accel-Redirect). Who comes past nginx gets the file from here.
    """

    chunk_size = 1 << 18

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or have it sent."""
        named = _accelerated(Path(self.path), scope["app"].state.services.settings)
        if named is None or scope["method"] != "GET" or not scope.get(PROXY_KEY):
            extensions = {**scope.get("extensions", {}), _PATHSEND: {}}
            await super().__call__({**scope, "extensions": extensions}, receive, partial(self._send, send))
            return
        size = await asyncio.to_thread(lambda: Path(self.path).stat().st_size)
        headers = {name: value for name, value in self.headers.items() if name not in _OF_THE_BODY}
        await Response(status_code=200, headers={**headers, "X-Accel-Redirect": named})(scope, receive, send)
        scope[SCOPE_KEY].down += size

    async def _send(self, send: Send, message: Message) -> None:
        """A message of the answer; the file where its path comes in place of it."""
        if message["type"] != _PATHSEND:
            await send(message)
            return
        descriptor = os.open(message["path"], os.O_RDONLY)
        try:
            offset, size = 0, os.fstat(descriptor).st_size
            while True:
                piece = _read_cached(descriptor, self.chunk_size, offset)
                if not piece:
                    piece = await in_thread(os.pread, descriptor, self.chunk_size, offset)
                offset += len(piece)
                is_last = not piece or offset >= size
                await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
                if is_last:
                    return
                await asyncio.sleep(0)  # others are served between two pieces
        finally:
            os.close(descriptor)


class DifferenceResponse(OctetsResponse):
    """The difference of a model to another one, which RFC 3229 (section 10.5.1) has named in the head."""

    def __init__(self, path: Path, base: str) -> None:
        """base: SHA-256 of the model that it is the difference to."""
        super().__init__(path, media_type=OCTETS, headers={DELTA_BASE: f'"{base}"'})


class ModelResponse(OctetsResponse):
    """A safetensors file; its ETag is its SHA-256, so a client knows at once whether it has it."""

    def __init__(self, path: Path, reference: ModelRef, name: str | None = None) -> None:
        """name: under which a browser keeps it."""
        headers = {"ETag": f'"{reference.sha256}"', "Content-Length": str(reference.size)}
        super().__init__(path, media_type=OCTETS, headers=headers, filename=name)


def _read_cached(descriptor: int, size: int, offset: int) -> bytes | bytearray:
    """Up to `size` bytes of a file, if they are in memory; nothing if the disk may have to be read."""
    if _NOWAIT is None:
        return b""
    piece = bytearray(size)
    try:
        count = os.preadv(descriptor, [piece], offset, _NOWAIT)
    except OSError:  # it has to, or this file system does not say
        return b""
    del piece[count:]
    return piece


def _accelerated(path: Path, settings: ServerSettings) -> str | None:
    """The path of a file for nginx, if nginx can send it."""
    folder = settings.data_dir
    if not settings.accel_location or not path.is_relative_to(folder):
        return None
    return settings.accel_location + quote(path.relative_to(folder).as_posix())


async def body_chunks(request: Request) -> AsyncIterator[bytes | memoryview]:
    """The bytes of a body as they come."""
    async for chunk in request.stream():
        if chunk:
            yield chunk
