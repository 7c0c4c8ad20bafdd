"""An agent in this process, with pauses short enough for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from client_app.agent import Agent, Pauses
from client_app.exchange import Client

FAST = Pauses(first=0.05, longest=0.2, refusal=0.05)


@asynccontextmanager
async def agent_running(client: Client) -> AsyncIterator[asyncio.Task[None]]:
    running = asyncio.create_task(Agent(client, FAST).run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], object], running: asyncio.Task[None]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            assert not running.done(), running.exception()
            await asyncio.sleep(0.02)
