"""Models as bodies: a file that is sent 1 MiB at a time, with its length and its digest, and one that comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import Request
from fastapi.responses import FileResponse

from fedcore.wire import ModelRef

OCTETS = "application/octet-stream"


class ModelResponse(FileResponse):
    """A safetensors file; its ETag is its SHA-256, so a client knows at once whether it has it."""

    # Starlette's 64 KiB were measured to be 4.5 times slower.
    chunk_size = 1 << 20

    def __init__(self, path: Path, reference: ModelRef, name: str | None = None) -> None:
        """name: under which a browser keeps it."""
        headers = {"ETag": f'"{reference.sha256}"', "Content-Length": str(reference.size)}
        super().__init__(path, media_type=OCTETS, headers=headers, filename=name)


async def body_chunks(request: Request) -> AsyncIterator[bytes]:
    """The bytes of a body as they come."""
    async for chunk in request.stream():
        if chunk:
            yield chunk
