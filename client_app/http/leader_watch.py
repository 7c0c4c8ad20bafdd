"""Noticing that another server of the federation leads while the one that a client waits for is silent.

A server may hold a poll for half a minute, so its silence says nothing. Those that stand by answer at once: the client
asks them every few seconds whether they lead, which costs the leader nothing. If one does, and a server on which the
client waits does not say that it leads too, the client goes over. Two addresses may lead to one server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

WATCH_SECONDS: Final = 3.0
"""Between two questions. With a lease of ten seconds a client finds the next leader within 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWatch:
    """Asks the servers that a client does not use.

    urls: of all servers.
    current: the address that it uses.
    waiting: addresses on which requests wait for an answer.
    leads: asks a server whether it leads.
    switch: called with the address of a server that leads, and those on which nothing is to wait any more.
    seconds: between two questions.
    """

    urls: Sequence[str]
    current: Callable[[], str]
    waiting: Callable[[], Iterable[str]]
    leads: Callable[[str], Awaitable[bool]]
    switch: Callable[[str, Sequence[str]], None]
    seconds: float = WATCH_SECONDS

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await asyncio.sleep(self.seconds)
            await self.look()

    async def look(self) -> None:
        """Ask once, and go over to a server that leads if one that is waited for does not.

        After a request that failed the client already uses another address, and older requests may still wait on the
        one before.
        """
        before = self.current()
        elsewhere = set(self.waiting()) - {before}
        others = [url for url in self.urls if url not in elsewhere and (url != before or elsewhere)]
        answers = await self._ask(others)
        leaders = [url for url, leads in answers.items() if leads]
        if not leaders:
            return
        answers |= await self._ask({before, *elsewhere} - answers.keys())
        now, waiting = self.current(), set(self.waiting())  # a request may have failed meanwhile, as others will
        silent = [url for url in self.urls if (url == now or url in waiting) and not answers[url]]
        if silent:
            self.switch(now if answers[now] else leaders[0], silent)

    async def _ask(self, urls: Iterable[str]) -> dict[str, bool]:
        urls = tuple(urls)
        return dict(zip(urls, await asyncio.gather(*map(self.leads, urls)), strict=True))
