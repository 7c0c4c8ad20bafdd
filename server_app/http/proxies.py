"""Requests through trusted proxies, and the client addresses that the proxies report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from server_app.http.rate_limit import is_within, networks, parsed_address

PROXY_KEY: Final = "fedcore.proxy"
"""Of a request's scope: whether a proxy brought it."""


class BehindProxies:
    """Believes the X-Forwarded-For of proxies that are trusted, and notes which requests one of them brought."""

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        """trusted: addresses and networks, as in `trust-proxy`."""
        self._proxies = networks(trusted)
        self._app = ProxyHeadersMiddleware(app, list(trusted))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Before the address of the proxy gives way to that of its client."""
        if client := scope.get("client"):
            scope[PROXY_KEY] = is_within(client[0], self._proxies)
            if scope[PROXY_KEY]:
                scope["client"] = str(parsed_address(client[0])), client[1]
        await self._app(scope, receive, send)  # type: ignore[arg-type]
