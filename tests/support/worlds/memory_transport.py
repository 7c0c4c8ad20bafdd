"""The transport in memory: one client's requests go to a server in this process, and are written down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from client_app.http.retry import Retry
from client_app.http.transport import Answer, ByteCount, SignRequest
from fedcore.errors import ProtocolViolation
from fedcore.monitoring.line_speed import LineSpeed
from fedcore.wire.base import Message

MASKED = ("digest",)
"""Fields of a control message that follow from the masked vector."""


class Listener(Protocol):
    """A server: what it answers, None for 204; it may raise Refused."""

    async def answer(
        self, client: int, method: str, path: str, body: bytes, query: dict[str, Any]
    ) -> Message | Path | None: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What the server sees of one request, without what only the masks decide."""

    method: str
    target: str
    body: str

    def __str__(self) -> str:
        return f"{self.method} {self.target} {self.body[:200]}"


@dataclass(slots=True)
class MemoryTransport:
    """The transport of one client. `parts` have the masked vector, `seen` all the rest, in order.

    on_task: called before the client gets a task. on_watch: when it asks for the survivors.
    """

    client: int
    server: Listener
    seen: list[Request] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    url: str = "https://adversary"
    received: int | None = None
    on_task: Callable[[], None] = lambda: None
    on_watch: Callable[[], None] = lambda: None
    traffic: ByteCount = field(default_factory=ByteCount)
    interruptions: int = 0
    line: LineSpeed = field(default_factory=LineSpeed)

    def sign_with(self, sign: SignRequest) -> None:
        """Nobody checks signatures here."""

    async def get(
        self,
        path: str,
        answer: type[Answer],
        *,
        wait: float | None = None,
        retry: Retry | None = None,
        limit: int | None = None,
        read: Callable[[bytes], Answer] | None = None,
        on_headers: Callable[[Mapping[str, str]], None] | None = None,
        **query: str | int,
    ) -> Answer | None:
        asked = dict(query) | ({"wait": f"{wait:g}"} if wait is not None else {})
        found = await self._ask("GET", path, b"", asked)
        if path == "/v1/task":
            self.on_task()
        return _parsed(found, answer)

    async def put(
        self, path: str, message: Message, answer: type[Answer], *, wait: float, is_large: bool = False
    ) -> Answer | None:
        query = {"wait": f"{wait:g}"} if wait else {}
        return _parsed(await self._ask("PUT", path, _json(message), query), answer)

    async def send(self, method: str, path: str, message: Message, *, retry: Retry | None = None) -> None:
        await self._ask(method, path, _json(message), {})

    async def ask(
        self, method: str, path: str, message: Message, answer: type[Answer], *, retry: Retry | None = None
    ) -> Answer:
        found = _parsed(await self._ask(method, path, _json(message), {}), answer)
        assert found is not None
        return found

    async def put_octets(
        self, path: str, content: memoryview, *, sha256: bytes, is_there: Callable[[], Awaitable[bool]]
    ) -> None:
        body = bytes(content)
        assert hashlib.sha256(body).digest() == sha256
        self.parts[path] = body
        self.seen.append(Request("PUT", path, f"{len(body)} masked bytes"))
        await self.server.answer(self.client, "PUT", path, body, {})

    async def download(self, path: str, target: Path, *, size: int, sha256: str, base: str = "") -> bool:
        found = await self._ask("GET", path, b"", {"base": base} if base else {})
        assert isinstance(found, Path)
        content = found.read_bytes()
        if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
            raise ProtocolViolation("model-digest", "the model is another than the one that was announced")
        target.write_bytes(content)  # noqa: ASYNC240 - of some bytes
        return False

    async def _ask(self, method: str, path: str, body: bytes, query: dict[str, Any]) -> Message | Path | None:
        target = f"{path}?{urlencode(query)}" if query else path
        if path.endswith("/survivors") or "/versions/" in path:  # of background work, which exchanges no keys
            self.on_watch()
        self.seen.append(Request(method, target, _without_masks(path, body)))
        return await self.server.answer(self.client, method, path, body, query)


def _json(message: Message) -> bytes:
    return message.model_dump_json().encode()


def _parsed(found: Message | Path | None, answer: type[Answer]) -> Answer | None:
    """As a client that knows only the bytes reads it."""
    assert not isinstance(found, Path)
    return None if found is None else answer.model_validate_json(found.model_dump_json())


def _without_masks(path: str, body: bytes) -> str:
    if not path.endswith("/manifest"):
        return body.decode()
    return json.dumps({name: value for name, value in json.loads(body).items() if name not in MASKED})
