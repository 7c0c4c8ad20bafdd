"""Files as answers: the same bytes, whether they are in memory or on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from server_app.routes.files import OCTETS, OctetsResponse
from server_app.settings import ServerSettings

SIZE = 2 * OctetsResponse.chunk_size + 5


async def fetched(folder: Path, content: bytes, **headers: str) -> httpx.Response:
    """What a client gets of a file with this content."""
    (folder / "model").write_bytes(content)
    services = SimpleNamespace(settings=ServerSettings(data_dir=folder))

    async def hand_out(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = SimpleNamespace(state=SimpleNamespace(services=services))
        await OctetsResponse(folder / "model", media_type=OCTETS)(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(hand_out), base_url="https://server") as client:
        return await client.get("/", headers=headers)


def nothing(*_: Any) -> int:
    """The disk has to be read, as after a long time."""
    raise BlockingIOError


def little(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
    """Only a little of the piece is in memory."""
    content = os.pread(descriptor, 1000, offset)
    buffers[0][: len(content)] = content
    return len(content)


@pytest.mark.parametrize("memory", [None, nothing, little], ids=["in memory", "on the disk", "a part in memory"])
@pytest.mark.parametrize("size", [0, 1, OctetsResponse.chunk_size, SIZE])
async def test_all_of_a_file_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, memory: Any) -> None:
    if memory is not None:
        monkeypatch.setattr(os, "preadv", memory)
    content = os.urandom(size)
    answer = await fetched(tmp_path, content)
    assert answer.content == content
    assert answer.headers["content-length"] == str(size)


async def test_the_rest_of_a_file_is_sent(tmp_path: Path) -> None:
    content = os.urandom(SIZE)
    answer = await fetched(tmp_path, content, range="bytes=7-")
    assert answer.status_code == 206
    assert answer.content == content[7:]
