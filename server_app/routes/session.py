"""Routes for signing in at the page, and for read-only links."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request, Response

from fedcore.errors import Unauthorized
from fedcore.federation.files import read_certificate
from fedcore.federation.kits.certificates import hosts_of, url_host
from fedcore.system.concurrency import in_thread
from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import SESSION_COOKIE, LinkIn, LinkInfo, LinkOut, LinksOut, SessionIn, SessionOut
from server_app.http.audience import ForEverybody, ForOperators
from server_app.http.authentication import Headers
from server_app.http.problems import problem_responses
from server_app.members.sessions import OWN_HEADER, cookie_in
from server_app.rejection import Rejection
from server_app.routes.access import AnyServices, AnySessions, guarded_request
from server_app.settings import ServerSettings
from server_app.storage.tables import LinkRow

_SIGNED: Final[dict[int | str, dict[str, Any]]] = {
    204: {
        "description": "Signed in",
        "headers": {
            "Set-Cookie": {"schema": {"type": "string"}, "description": f"{SESSION_COOKIE}-..., for twelve hours"}
        },
    }
}
open_router = APIRouter(prefix="/v1", route_class=ForEverybody, tags=["session"])
router = APIRouter(
    prefix="/v1",
    route_class=ForOperators,
    tags=["operator"],
    responses=problem_responses(
        ProblemKind.UNAUTHORIZED, ProblemKind.MALFORMED, ProblemKind.NOT_ALLOWED, ProblemKind.CROSS_SITE
    ),
)
LinkId = Annotated[str, Path(min_length=1, max_length=64)]


@open_router.post(
    "/session",
    status_code=204,
    responses={
        **problem_responses(
            ProblemKind.UNAUTHORIZED,
            ProblemKind.MALFORMED,
            ProblemKind.CROSS_SITE,
            ProblemKind.TOO_LARGE,
            ProblemKind.IDENTITY_PROVIDER,
        ),
        **_SIGNED,
    },
)
async def sign_in(body: SessionIn, request: Request, response: Response, sessions: AnySessions) -> None:
    """Sign in with the operator's token, that of a read-only link, or one of the identity provider.

    A cookie stands for it from then on.
    """
    headers = Headers(request.scope)
    if cookie_in(headers.items(), sessions.cookie) and headers.get(OWN_HEADER) != "1":
        raise Rejection(ProblemKind.CROSS_SITE, "with a cookie, signing in needs the header X-Fedcore: 1")
    try:
        secret, session = await sessions.sign_in(body.token)
    except Unauthorized:
        if (refused := guarded_request(request).refused) is not None:
            await refused()
        raise
    set_session(response, sessions.cookie, secret, sessions.seconds_left(session))


def set_session(response: Response, cookie: str, secret: str, seconds: float) -> None:
    """Set the session's cookie, for so many seconds."""
    response.set_cookie(
        cookie,
        secret,
        max_age=max(math.ceil(seconds), 1),
        path="/",
        secure=True,
        httponly=True,
        samesite="strict",
    )


@router.get("/session")
async def session(request: Request, services: AnyServices) -> SessionOut:
    """Who asks, and until when that is good."""
    known = guarded_request(request)
    expires = None if known.session is None else _time(known.session.expires)
    person = "" if known.session is None else known.session.person
    return SessionOut(role=known.role, federation=services.roster.federation, expires=expires, person=person)


@router.delete("/session", status_code=204, responses=problem_responses(ProblemKind.NOT_FOUND))
async def sign_out(request: Request, response: Response, sessions: AnySessions) -> None:
    """End the session, and the streams that it has open."""
    known = guarded_request(request).session
    if known is None or not known.by_cookie:
        raise Rejection(ProblemKind.NOT_FOUND, "a token itself is no session; nothing ends")
    await sessions.sign_out(known)
    response.delete_cookie(sessions.cookie, path="/", secure=True, httponly=True, samesite="strict")


@router.post("/links", status_code=201, responses=problem_responses(ProblemKind.BUSY))
async def make_link(body: LinkIn, request: Request, services: AnyServices, sessions: AnySessions) -> LinkOut:
    """Create a read-only link to the page. Its token appears only in this answer."""
    token, row = await sessions.make_link(body)
    # Behind `#`, where it is sent to no server and stands in no log.
    url = f"{await address_of(request, services.settings)}/#view={token}"
    return LinkOut(**_info(row).model_dump(), token=token, url=url)


@router.get("/links")
async def links(sessions: AnySessions) -> LinksOut:
    """The links that are good."""
    return LinksOut(links=[_info(row) for row in await sessions.links()])


@router.delete("/links/{link}", status_code=204, responses=problem_responses(ProblemKind.NOT_FOUND))
async def revoke(link: LinkId, sessions: AnySessions) -> None:
    """End a link, and at once the sessions of all who came by it."""
    await sessions.revoke(link)


async def address_of(request: Request, settings: ServerSettings) -> str:
    """Where people reach the page: never merely where the request says, since a link holds a secret, a login a code.

    As configured; or as the request says, if the certificate names that; or what the certificate names first.
    """
    return await in_thread(_address, request, settings)


def _address(request: Request, settings: ServerSettings) -> str:
    if settings.public_url or settings.certificate is None:
        return settings.public_url or settings.url or f"https://{request.url.netloc}"
    names = hosts_of(read_certificate(settings.certificate))
    host = request.url.hostname or ""
    if host in names or f"*.{host.partition('.')[2]}" in names:
        return f"https://{request.url.netloc}"
    port = settings.url.rpartition(":")[2]
    first = next((name for name in names if "*" not in name), "localhost")
    return f"https://{url_host(first)}{f':{port}' if port.isdecimal() else ''}"


def _info(row: LinkRow) -> LinkInfo:
    return LinkInfo(id=row.id, label=row.label, created=_time(row.created), expires=_time(row.expires))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=0)
