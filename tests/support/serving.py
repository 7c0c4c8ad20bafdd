"""An ASGI app behind uvicorn in this process: at once there, at once gone, with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

_LOOK_SECONDS = 0.001


@contextmanager
def held_port(host: str) -> Iterator[int]:
    """A port that nobody else gets, neither to listen on nor for a connection of its own, while the block lasts.

    Whoever is told its number can listen there all the same: two sockets that both allow the reuse of an address may be
    bound to it as long as one listens at most.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield int(holder.getsockname()[1])


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
