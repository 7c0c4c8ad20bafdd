"""The operator's client against a server in this process: it blocks in a thread, and the test's event loop answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import httpx

from client_app.operator.client import OperatorClient

from .serverside import Site

T = TypeVar("T")


@dataclass
class Bridge(httpx.BaseTransport):
    """Hands each request to the application of a site.

    away: how many of the next requests find no server; lost: how many of them are carried out, and their answers lost;
    frozen: an address whose server takes requests and never answers. patience: the read timeouts of those, in seconds.
    """

    site: Site
    loop: asyncio.AbstractEventLoop
    away: int = 0
    lost: int = 0
    frozen: str = ""
    patience: list[float] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.raw_path.decode()}")
        if self.away:
            self.away -= 1
            raise httpx.ConnectError("nobody is there", request=request)
        if self.frozen and str(request.url).startswith(self.frozen):
            self.patience.append(request.extensions["timeout"]["read"])
            raise httpx.ReadTimeout("no answer", request=request)
        content = b"".join(request.stream)  # type: ignore[arg-type]
        again = self.site.http.request(
            request.method, request.url.raw_path.decode(), content=content, headers=dict(request.headers)
        )
        answer = asyncio.run_coroutine_threadsafe(again, self.loop).result()
        if self.lost:
            self.lost -= 1
            raise httpx.ReadError("the connection broke", request=request)
        headers = {key: value for key, value in answer.headers.items() if key != "content-encoding"}
        return httpx.Response(answer.status_code, content=answer.content, headers=headers, request=request)


async def operate(site: Site, work: Callable[[OperatorClient], T], bridge: Bridge | None = None) -> T:
    """What `work` does with a client, in a thread."""

    def run() -> T:
        transport = bridge or Bridge(site, loop)
        kit = site.operator_kit
        if transport.frozen:
            kit = replace(kit, servers=(transport.frozen, *kit.servers))
        with OperatorClient(kit, connect_seconds=5.0, transport=transport) as client:
            return work(client)

    loop = asyncio.get_running_loop()
    return await asyncio.to_thread(run)
