"""An ASGI app behind uvicorn in this process: at once there, at once gone, with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

_LOOK_SECONDS = 0.001


@asynccontextmanager
async def serving(config: uvicorn.Config) -> AsyncIterator[None]:
    """Serve while the context lasts.

    Not by `Server.serve`, which catches signals, looks ten times a second whether it should end, and then sleeps.
    """
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    await server.on_tick(0)  # fills in the headers of all answers
    try:
        yield
    finally:
        await _end(server)


async def _end(server: uvicorn.Server) -> None:
    """Close all connections, those in their TLS handshake too: the loop may end right after."""
    for listener in server.servers:
        listener.close()
    state: Any = server.server_state
    await asyncio.sleep(_LOOK_SECONDS)  # one that was just accepted is no connection yet
    while state.connections or state.tasks or any(map(_is_connected, server.servers)):
        for connection in state.connections:
            # One that was closed twice has let go of its TLS; it ends when the client does.
            with contextlib.suppress(AttributeError):
                connection.transport.abort()
        for task in state.tasks:
            task.cancel()
        await asyncio.sleep(_LOOK_SECONDS)


def _is_connected(listener: asyncio.Server) -> bool:
    """Whether it accepted a connection that is still open. asyncio says so in public from 3.13 on."""
    return bool(getattr(listener, "_active_count", 0) or getattr(listener, "_clients", ()))
