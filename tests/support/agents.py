"""An agent in this process, with pauses short enough for tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from client_app.agent.agent import Agent, Pauses
from client_app.exchange.client import Client

FAST = Pauses(first=0.05, longest=0.2, refusal=0.05, farewell=60.0)


@asynccontextmanager
async def agent_running(
    client: Client, jitter: Callable[[], float] = random.random
) -> AsyncIterator[asyncio.Task[None]]:
    """Run an agent while the context lasts; `jitter` is called before each of its pauses."""
    running = asyncio.create_task(Agent(client, FAST, jitter).run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], object], running: asyncio.Task[None]) -> None:
    """Wait for `condition`, while the agent runs."""
    while not condition():
        assert not running.done(), running.exception()
        await asyncio.sleep(0.02)
