"""The ASGI application of one server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from fedcore.http_signing import NonceCache
from fedcore.system.version import fedcore_version
from fedcore.wire import ProblemDocument
from server_app.http.audience import Audiences
from server_app.http.authentication import Authenticator
from server_app.http.guard import Guard
from server_app.http.problems import install
from server_app.routes import client, docs, health, operator
from server_app.runs.queue import RunQueue, StartApp
from server_app.services import Services

log = logging.getLogger("fedcore.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The guarded application, and the FastAPI application inside it."""

    asgi: ASGIApp
    fastapi: FastAPI = field(repr=False)
    queue: RunQueue = field(repr=False)


class _App(FastAPI):
    """FastAPI whose schema also holds the problem document, which routes only refer to."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        schema["components"]["schemas"].setdefault("Problem", ProblemDocument.model_json_schema())
        return schema


def make_application(services: Services, *, token_sha256: bytes, start_app: StartApp | None = None) -> Application:
    """Wire up routes, errors and the guard. token_sha256: SHA-256 of the operator's token.

    The application's lifespan starts and stops the queue.
    """
    queue = RunQueue(services, start_app=start_app) if start_app else RunQueue(services)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await queue.start()
        try:
            yield
        finally:
            services.client_bell.stop()
            services.run_bell.stop()
            await queue.stop()

    app = _App(
        title="fedcore",
        summary="Federated learning with secure aggregation",
        version=fedcore_version(),
        lifespan=lifespan,
        docs_url=None,  # ours is in routes/docs.py
        redoc_url=None,
    )
    app.state.services = services
    app.state.queue = queue
    routers = (client.router, operator.router, health.router, docs.router)
    for router in routers:
        app.include_router(router)
    install(app)
    audiences = Audiences(
        (route for router in routers for route in router.routes),
        open_paths=(app.openapi_url,),
    )
    return Application(asgi=_guarded(app, audiences, services, token_sha256), fastapi=app, queue=queue)


def _guarded(app: FastAPI, audiences: Audiences, services: Services, token_sha256: bytes) -> Guard:
    authenticator = Authenticator(
        audiences=audiences,
        rosters=services.roster,
        token_sha256=token_sha256,
        clock=services.wall,
        # Not tied to the start of the process: what was signed before is bound to exchanges that
        # ended with it, and a client whose clock is a minute late must not be locked out.
        nonces=NonceCache(),
    )
    return Guard(
        app=app,
        authenticate=authenticator,
        rosters=services.roster,
        stall_seconds=services.settings.stall_seconds,
    )
