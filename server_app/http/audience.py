"""Audiences of routes: who may call one, declared by the route class of its router.

The guard reads the declaration before it reads a byte of the body. What is declared nowhere is closed: a router of
undeclared routes stops the making of the application, and an address that no declared route has is not found, even
if something was added to the FastAPI application behind the guard's back.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, Final

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from fedcore.errors import UsageError
from fedcore.wire.problems import ProblemKind
from server_app.rejection import Rejection


class Audience(StrEnum):
    """Who may call a route. `VIEWERS`: operators, and people with a read-only link."""

    CLIENTS = "clients"
    OPERATORS = "operators"
    VIEWERS = "viewers"
    EVERYBODY = "everybody"


VIEWERS_MAY: Final = frozenset(
    {
        ("GET", "/v1/session"),
        ("DELETE", "/v1/session"),
        ("GET", "/v1/runs"),
        ("GET", "/v1/runs/{run}"),
        ("GET", "/v1/runs/{run}/clients"),
        ("GET", "/v1/runs/{run}/rounds"),
        ("GET", "/v1/runs/{run}/marks"),
        ("GET", "/v1/runs/{run}/saw"),
        ("GET", "/v1/runs/{run}/live"),
        ("GET", "/v1/clients"),
        ("GET", "/v1/live"),
    }
)
"""All that a read-only link is good for, of what operators may do: method and path, as the route has them."""


class ForClients(APIRoute):
    """A route for members of the roster, who sign their requests."""

    audience: ClassVar[Audience] = Audience.CLIENTS


class ForOperators(APIRoute):
    """A route for holders of the operator's token; for viewers too, if `VIEWERS_MAY` lists it."""

    audience: ClassVar[Audience] = Audience.OPERATORS


class ForEverybody(APIRoute):
    """A route that is open."""

    audience: ClassVar[Audience] = Audience.EVERYBODY


class Audiences:
    """The audiences of an application's routes.

    routes
        All declared routes.
    open_paths
        Addresses that are open without a declared route, such as the schema.

    Raises:
        UsageError: a route declares no audience.
    """

    def __init__(self, routes: Iterable[BaseRoute], open_paths: Iterable[str | None] = ()) -> None:
        self._routes: list[tuple[BaseRoute, Audience]] = []
        self._open = frozenset(open_paths)
        for route in routes:
            audience = getattr(route, "audience", None)
            if not isinstance(audience, Audience):
                raise UsageError(
                    f"the route {getattr(route, 'path', route)} does not say who may call it: give its router one of "
                    "the route classes of server_app.http.audience"
                )
            self._routes.append((route, audience))

    def check_viewers(self) -> None:
        """Whether all that viewers may do is a route of operators; raises UsageError."""
        unknown = set(VIEWERS_MAY)
        for route, audience in self._routes:
            if audience is Audience.OPERATORS and isinstance(route, APIRoute):
                unknown -= {(method, route.path) for method in route.methods or ()}
        if unknown:
            raise UsageError(f"no route of operators is {sorted(unknown)}, which viewers are to see")

    def of(self, scope: Scope) -> Audience:
        """Who may make this request, by its path and method; Rejection if no route has this address."""
        other_method = None
        for route, audience in self._routes:
            match, _ = route.matches(scope)
            if match is Match.FULL:
                may_view = (scope["method"], getattr(route, "path", "")) in VIEWERS_MAY
                return Audience.VIEWERS if audience is Audience.OPERATORS and may_view else audience
            if match is Match.PARTIAL and other_method is None:
                other_method = audience
        if other_method is not None:
            return other_method
        if scope["path"] in self._open:
            return Audience.EVERYBODY
        raise Rejection(ProblemKind.NOT_FOUND, "there is nothing at this address")
