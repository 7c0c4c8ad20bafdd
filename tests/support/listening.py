"""A browser's EventSource, over the application without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .serverside import Site


@dataclass(frozen=True, slots=True)
class Told:
    """One event. id: empty where it has none."""

    id: str
    kind: str
    data: Any


@dataclass
class Listener:
    """What came so far. ended: set once the answer is complete."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    _grew: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: bool = False

    @property
    def events(self) -> list[Told]:
        """All events so far."""
        return [_told(block) for block in self.body.split("\n\n")[:-1] if not block.startswith(":")]

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def until(self, kind: str, count: int = 1) -> list[Told]:
        """All events of a kind, once there are so many; AssertionError where the stream ends before."""
        while len(found := [event for event in self.events if event.kind == kind]) < count:
            assert not self.ended.is_set(), f"the stream ended with {self.kinds}"
            self._grew.clear()
            await self._grew.wait()
        return found

    async def receive(self) -> dict[str, Any]:
        """What ASGI asks: the request, and at last its end."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """What ASGI says."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"").decode()
            if not message.get("more_body", False):
                self.ended.set()
        self._grew.set()


def _told(block: str) -> Told:
    fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
    return Told(fields.get("id", ""), fields["event"], json.loads(fields["data"], parse_constant=_refuse))


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON that a browser reads")


@contextlib.asynccontextmanager
async def listening(
    here: Site, address: str, *, cookie: str = "", headers: Mapping[str, str] | None = None, client: str = "10.0.0.1"
) -> AsyncIterator[Listener]:
    """Follow an address, with a session or else the operator's token; its end is a connection that ends."""
    path, _, query = address.partition("?")
    who = {"cookie": f"{here.cookie}={cookie}"} if cookie else {}
    who = who or {"authorization": f"Bearer {here.operator_kit.token}"}
    lines = [(name.lower().encode(), value.encode()) for name, value in {**who, **(headers or {})}.items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "https", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": lines, "client": (client, 1), "server": ("server", 443),
    }  # fmt: skip
    listener = Listener()
    serving = asyncio.create_task(here.application.asgi(scope, listener.receive, listener.send))  # type: ignore[arg-type]
    try:
        yield listener
    finally:
        listener.gone.set()
        await serving
