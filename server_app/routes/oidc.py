"""Routes for signing in at the identity provider of an institution, in a browser."""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from fedcore.errors import PeerError, Unauthorized
from fedcore.system.terminal import visible
from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import OidcOut
from server_app.http.audience import ForEverybody
from server_app.http.authentication import Headers
from server_app.http.problems import problem_responses
from server_app.members.identity_provider import IdentityProvider
from server_app.members.login_cookie import LOGIN_SECONDS
from server_app.members.sessions import LoginSessions, cookie_in
from server_app.rejection import Rejection
from server_app.routes.access import AnyServices, AnySessions, guarded_request
from server_app.routes.session import address_of, set_session

log = logging.getLogger("fedcore.server")
CALLBACK: Final = "/oidc/callback"
_FAILED: Final = "/#sign-in="
"""Behind it is a word that the page has a sentence for."""

router = APIRouter(
    route_class=ForEverybody,
    tags=["session"],
    responses=problem_responses(ProblemKind.NOT_FOUND, ProblemKind.MALFORMED),
)
Text = Annotated[str, Query(max_length=4096)]


@router.get("/v1/oidc")
async def settings(sessions: AnySessions) -> OidcOut:
    """The identity provider at which people may sign in, for the page and for `fedcore login`."""
    known = _provider(sessions).settings
    return OidcOut(issuer=known.issuer, client_id=known.device_client_id, scope=known.scope)


@router.get("/oidc/login", status_code=302, response_class=RedirectResponse)
async def begin(request: Request, services: AnyServices, sessions: AnySessions) -> Response:
    """Begin a login: leads to the identity provider."""
    provider = _provider(sessions)
    login, cookie = sessions.logins.begin()
    back = await address_of(request, services.settings) + CALLBACK
    try:
        url = await provider.authorization_url(
            redirect_uri=back, state=login.state, nonce=login.nonce, verifier=login.verifier
        )
    except PeerError as error:
        return _failed(sessions, error)
    response = RedirectResponse(url, status_code=302)
    # Lax: the provider's page leads back here, and a strict cookie would not come along.
    response.set_cookie(
        sessions.logins.name, cookie, max_age=LOGIN_SECONDS, path="/", secure=True, httponly=True, samesite="lax"
    )
    return response


@router.get(CALLBACK, status_code=302, response_class=RedirectResponse)
async def complete(
    request: Request,
    services: AnyServices,
    sessions: AnySessions,
    code: Text = "",
    state: Text = "",
    iss: Text = "",
    error: Text = "",
) -> Response:
    """Where the identity provider leads back to, with a code; then leads to the page, signed in or with a reason."""
    provider = _provider(sessions)
    try:
        login = sessions.logins.read(cookie_in(Headers(request.scope).items(), sessions.logins.name), state)
        if error or not code:
            raise Unauthorized("the identity provider refused the login; begin again", check="refused")
        person = await provider.person_of_code(
            code,
            issuer=iss,
            redirect_uri=await address_of(request, services.settings) + CALLBACK,
            nonce=login.nonce,
            verifier=login.verifier,
        )
    except Unauthorized as failure:
        if (refused := guarded_request(request).refused) is not None:
            await refused()
        return _failed(sessions, failure)
    except Rejection as failure:
        return _failed(sessions, failure)
    secret, session = await sessions.sign_in_person(person)
    response = RedirectResponse("/", status_code=302)
    set_session(response, sessions.cookie, secret, sessions.seconds_left(session))
    _forget(sessions, response)
    return response


@router.get("/oidc/logout", status_code=302, response_class=RedirectResponse)
async def leave(request: Request, services: AnyServices, sessions: AnySessions) -> Response:
    """Leads to where one signs out at the identity provider; the session here ends by DELETE /v1/session."""
    provider = _provider(sessions)
    back = await address_of(request, services.settings) + "/"
    try:
        return RedirectResponse(await provider.logout_url(back), status_code=302)
    except Rejection as failure:
        return _failed(sessions, failure)


def _provider(sessions: LoginSessions) -> IdentityProvider:
    if sessions.provider is None:
        raise Rejection(ProblemKind.NOT_FOUND, "this server has no [oidc] in server.toml: nobody signs in this way")
    return sessions.provider


def _failed(sessions: LoginSessions, error: PeerError) -> Response:
    log.warning("a login failed: %s", visible(str(error)))
    response = RedirectResponse(_FAILED + (error.check or "refused"), status_code=302)
    _forget(sessions, response)
    return response


def _forget(sessions: LoginSessions, response: Response) -> None:
    response.delete_cookie(sessions.logins.name, path="/", secure=True, httponly=True, samesite="lax")
