"""Noticing that another server of the federation leads while the one that a client waits for is silent.

A server may hold a poll for half a minute, so its silence says nothing. Those that stand by answer at once: the client
asks them every few seconds whether they lead, which costs the leader nothing. If one does, and the server that the
client waits for does not say that it leads too, the client goes over. Two addresses may lead to one server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from client_app.http.blocking_transport import BlockingTransport, HttpRequest, HttpResponse
from client_app.http.errors import ConnectionFailed
from fedcore.errors import ConfigurationError

WATCH_SECONDS: Final = 3.0
"""Between two questions. With a lease of ten seconds a client finds the next leader within 20."""
_ANSWER_SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWatch:
    """Asks the servers that a client does not use.

    current: the address that it uses.
    switch: called with the address of another one, which leads.
    """

    network: BlockingTransport
    urls: Sequence[str]
    current: Callable[[], str]
    switch: Callable[[str], None]
    seconds: float = WATCH_SECONDS

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await asyncio.sleep(self.seconds)
            before = self.current()
            others = [url for url in self.urls if url != before]
            answers = await asyncio.gather(*map(self._leads, others))
            leaders = [url for url, leads in zip(others, answers, strict=True) if leads]
            if leaders and not await self._leads(before) and self.current() == before:
                self.switch(leaders[0])

    async def _leads(self, url: str) -> bool:
        request = HttpRequest(
            method="GET",
            server=url,
            target="/readyz",
            headers={"host": urlsplit(url).netloc, "accept-encoding": "identity", "user-agent": "fedcore-client"},
        )
        try:
            async with asyncio.timeout(2 * _ANSWER_SECONDS):  # a connection may have to be made first
                return await self.network.send(request, _is_ready, read_seconds=_ANSWER_SECONDS)
        except (ConnectionFailed, ConfigurationError, TimeoutError):
            return False


def _is_ready(response: HttpResponse) -> bool:
    size = 0
    for piece in response.pieces(_MOST_BYTES):
        size += len(piece)
        if size > _MOST_BYTES:
            response.close()
            break
    return response.status == HTTPStatus.OK
