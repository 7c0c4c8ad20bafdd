"""The ASGI application of one server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Scope

from fedcore.system.version import fedcore_version
from fedcore.wire.presence import LEADER_PATH
from fedcore.wire.problems import ProblemDocument
from fedcore.wire.signing import NonceCache
from fedcore.wire.watch import Role, session_cookie
from server_app.http.audience import Audiences
from server_app.http.authentication import Authenticator
from server_app.http.connection_limiter import CONNECTION_KEY
from server_app.http.early_answers import EarlyAnswers
from server_app.http.event_stream import StreamSlots
from server_app.http.guard import Guard
from server_app.http.problems import install
from server_app.http.rate_limit import TokenBucket
from server_app.http.standby import Standby
from server_app.members.identity_provider import IdentityProvider
from server_app.members.reach import Reach
from server_app.members.sessions import LoginSessions
from server_app.members.traffic import KEY_PREFIX
from server_app.operation.clocks import is_off
from server_app.routes import client, docs, exchange_steps, health, live, oidc, operator, page, session, watching
from server_app.runs.files.offers import AppOffers
from server_app.runs.leadership import Leadership
from server_app.runs.queue import RunQueue
from server_app.runs.worker import StartApp
from server_app.services import Services
from server_app.views.overview_feed import OverviewFeed
from server_app.views.presence_log import PresenceLog

log = logging.getLogger("fedcore.server")
_ROUTERS: Final = (
    client.router,
    exchange_steps.router,
    operator.router,
    session.router,
    session.open_router,
    oidc.router,
    watching.router,
    live.router,
    health.router,
    docs.router,
    page.router,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The guarded application, and what is inside it."""

    asgi: ASGIApp
    guard: Guard = field(repr=False)
    fastapi: FastAPI = field(repr=False)
    queue: RunQueue = field(repr=False)
    leadership: Leadership = field(repr=False)


class _App(FastAPI):
    """FastAPI whose schema also holds the problem document, which routes only refer to."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        schema["components"]["schemas"].setdefault("Problem", ProblemDocument.model_json_schema())
        return schema


def make_application(services: Services, *, token_sha256: bytes, start_app: StartApp | None = None) -> Application:
    """Wire up routes, errors and the guard; the lifespan of the application starts and stops the queue.

    services
        Of this process.
    token_sha256
        SHA-256 of the operator's token.
    start_app
        Starts the ServerApp of a run; None for a process in a sandbox.
    """
    queue = RunQueue(services, start_app=start_app)

    async def cease() -> None:
        await asyncio.gather(standby.refuse_open(), queue.stop())

    leadership = Leadership(services, begin=queue.start, cease=cease)
    app = _App(
        title="fedcore",
        summary="Federated learning with secure aggregation",
        version=fedcore_version(),
        lifespan=_lifespan(services, leadership),
        docs_url=None,  # ours is in routes/docs.py
        redoc_url=None,
    )
    sessions = _sessions(services, token_sha256)
    app.state.services = services
    app.state.queue = queue
    app.state.offers = AppOffers(services)
    app.state.leadership = leadership
    app.state.feed = OverviewFeed(services)
    app.state.stream_slots = slots = StreamSlots()
    app.state.sessions = sessions
    for router in _ROUTERS:
        # Not included: each application would then build every route once more, at its first request.
        app.router.routes.extend(router.routes)
    install(app, services.metrics)
    _measure(services, leadership, slots)
    guarded = _guarded(app, services, sessions)
    standby = Standby(
        guarded,
        lambda: leadership.leads,
        lambda: leadership.trouble or services.health.trouble,
        partial(_note_member, guarded.authenticate, services.reach),
        lambda: leadership.leader,
    )
    return Application(
        asgi=EarlyAnswers(standby),
        guard=guarded,
        fastapi=app,
        queue=queue,
        leadership=leadership,
    )


def _note_member(authenticate: Authenticator, reach: Reach, scope: Scope) -> None:
    """A member's connection is no stranger's while this server stands by, either."""
    client = authenticate.member(scope)
    if client is None:
        return
    if (connection := scope.get(CONNECTION_KEY)) is not None:
        connection.mark_authenticated(f"{KEY_PREFIX}{client}")
    if scope["path"] != LEADER_PATH:  # which clients ask all the time
        reach.note_request()


def _sessions(services: Services, token_sha256: bytes) -> LoginSessions:
    return LoginSessions(
        services.store,
        cookie=session_cookie(services.roster.authority),
        token_sha256=token_sha256,
        wall=services.wall,
        randomness=services.randomness,
        bell=services.run_bell,
        provider=IdentityProvider(known, services.wall) if (known := services.settings.oidc) is not None else None,
    )


def _measure(services: Services, leadership: Leadership, slots: StreamSlots) -> None:
    """Let the metrics ask who leads, how far clocks are off, and how many streams are open, whenever they are read."""
    metrics = services.metrics
    metrics.database_clock.set_function(lambda: services.clocks.database or 0.0)
    metrics.clients_off.set_function(lambda: sum(map(is_off, services.clocks.clients.values())))
    metrics.leader.set_function(lambda: float(leadership.leads))
    for role in Role:
        metrics.streams.labels(role.value).set_function(partial(slots.of_role, role))


def _lifespan(services: Services, leadership: Leadership) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The queue, which the leader leads, and the roll call of the clients."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await leadership.start()
        presence_log = asyncio.create_task(PresenceLog(services.presence, lambda: services.names).watch())
        try:
            yield
        finally:
            presence_log.cancel()
            await leadership.stop()

    return lifespan


def _guarded(app: FastAPI, services: Services, sessions: LoginSessions) -> Guard:
    """The application behind the guard, which knows for whom each address is."""
    audiences = Audiences((route for router in _ROUTERS for route in router.routes), open_paths=(app.openapi_url,))
    audiences.check_viewers()
    authenticator = Authenticator(
        audiences=audiences,
        rosters=services.roster,
        sessions=sessions,
        clock=services.wall,
        # Not tied to the start of the process: what was signed before is bound to exchanges that
        # ended with it, and a client whose clock is a minute late must not be locked out.
        nonces=NonceCache(),
        on_time=services.clocks.note_client,
    )
    return Guard(
        app=app,
        authenticate=authenticator,
        rosters=services.roster,
        stall_seconds=services.settings.stall_seconds,
        on_answer=services.metrics.answered,
        strangers=TokenBucket(
            rate=services.settings.strangers_a_second,
            burst=10 * services.settings.strangers_a_second,
            clock=time.monotonic,  # of the machine, whose clock also times the waiting
        ),
    )
