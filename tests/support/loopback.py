"""The server's own stack on a loopback port of this process, over a site's application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import ASGIApp

from fedcore.federation import FederationFolder
from server_app.http.connection_limiter import ConnectionLimiter
from server_app.http.head_limits import GuardedProtocol
from server_app.operation.certificate import ServedCertificate
from server_app.serving import LimitedServer

NEVER = 86_400.0
"""Seconds; what is to come at once comes before, however busy the machine is."""


@contextlib.asynccontextmanager
async def listening(
    application: ASGIApp,
    *,
    header_seconds: float = NEVER,
    most: int = 100,
    tls: FederationFolder | None = None,
) -> AsyncIterator[tuple[LimitedServer, int]]:
    """The server over the application, and its loopback port; the lifespan is the site's own."""
    limits = {"header_bytes": 8192, "header_seconds": header_seconds}
    protocol = type("Protocol", (GuardedProtocol,), limits)
    served = ServedCertificate(tls.server / "server.crt", tls.server / "server.key", wall=time.time) if tls else None
    config = uvicorn.Config(application, http=protocol, ws="none", lifespan="off", log_config=None, port=0)
    server = LimitedServer(config, ConnectionLimiter(most=most, seconds=header_seconds), served)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield server, listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving
