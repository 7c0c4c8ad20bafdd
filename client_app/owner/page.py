"""Status page of a client on this machine's loopback, for its owner alone.

Its address has a token that opens it once, in exchange for a cookie. Each request reads the records from disk. The page
can change one thing: the owner can approve an offered app, with a form that only the page with its difference has. DNS
rebinding and forms of other sites fail the checks of Host, Origin and that form's secret. The page works without
scripts; with them it updates itself.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from client_app.commands.app_difference import unified
from client_app.commands.offers import approve, both_bundles
from client_app.owner.document import as_html, as_markdown, render
from client_app.owner.sections import sections
from client_app.owner.status import read_status, status_json
from client_app.records.offers import Offers
from fedcore.errors import FedcoreError
from fedcore.federation import ClientKit
from fedcore.monitoring.formatting import the_federation
from fedcore.system.concurrency import in_thread

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all, browsers do not name the origin of a form either
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_FORM_BYTES: Final = 4096
_SESSION_SECONDS: Final = 12 * 3600


@dataclass(slots=True)
class OwnerPage:
    """The page, from its start to Ctrl-C."""

    kit: Path
    state_dir: Path | None
    port: int
    """Where it listens."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _sessions: set[bytes] = field(default_factory=set, repr=False)

    @property
    def url(self) -> str:
        """The address that opens the page, once."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def application(self) -> Starlette:
        """The application that serves it."""
        routes = [
            Route("/", self._status),
            Route("/page.css", self._style),
            Route("/page.js", self._script),
            Route("/export.{kind:str}", self._export),
            Route("/apps/{sha256:str}", self._app),
            Route("/apps/{sha256:str}", self._approve, methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=self._guard)])

    async def _guard(self, request: Request, go_on: RequestResponseEndpoint) -> Response:
        response = self._refusal(request)
        if response is None:
            try:
                response = await go_on(request)
            except FedcoreError as error:
                response = _message("This cannot be shown", str(error), 409)
        response.headers.update(HEADERS)
        return response

    def _refusal(self, request: Request) -> Response | None:
        """The refusal of a request that is not for this page, or not from its owner; None to accept it."""
        hosts = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        host = request.headers.get("host", "")
        if host not in hosts:
            return _message("Refused", "This page answers to 127.0.0.1 and localhost only.", 421)
        if request.method not in ("GET", "HEAD") and request.headers.get("origin") != f"http://{host}":
            return _message("Refused", "This was not sent by this page.", 403)
        if (token := request.query_params.get("token")) is not None:
            return self._open(token)
        if not self._knows(request.cookies.get(self._cookie, "")):
            return _message("Closed", "Open the address that `fedcore client status --page` printed.", 403)
        return None

    def _open(self, token: str) -> Response:
        if not self.token or not secrets.compare_digest(token.encode(), self.token.encode()):
            return _message("Closed", "This address was used before. Start the command again for a new one.", 403)
        self.token = ""
        session = secrets.token_urlsafe(32)
        self._sessions.add(_digest(session))
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(self._cookie, session, max_age=_SESSION_SECONDS, httponly=True, samesite="strict")
        return response

    @property
    def _cookie(self) -> str:
        """Cookies ignore the port, so two pages on one machine need two names."""
        return f"fedcore-owner-{self.port}"

    def _knows(self, session: str) -> bool:
        return _digest(session) in self._sessions

    # Routes that read the disk are no coroutines: starlette runs those in threads.

    def _status(self, _: Request) -> Response:
        status = read_status(self.kit, self.state_dir)
        title = f"{status.client} in {the_federation(status.federation)}"
        return _html(render("page.html.j2", title=title, made=status.made, sections=sections(status)))

    def _style(self, _: Request) -> Response:
        return Response(render("style.css.j2"), media_type="text/css")

    def _script(self, _: Request) -> Response:
        content = (files("client_app.owner") / "static" / "page.js").read_text(encoding="utf-8")
        return Response(content, media_type="text/javascript")

    def _export(self, request: Request) -> Response:
        formats: dict[str, tuple[str, Callable[..., str]]] = {
            "html": ("text/html", as_html),
            "md": ("text/markdown", as_markdown),
            "json": ("application/json", status_json),
        }
        format_ = formats.get(request.path_params["kind"])
        if format_ is None:
            return _message("Not found", "There is html, md and json.", 404)
        media, write = format_
        status = read_status(self.kit, self.state_dir)
        name = f"{status.client}-{status.made:%Y-%m-%d}.{request.path_params['kind']}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(write(status), media_type=media, headers=headers)

    def _app(self, request: Request) -> Response:
        sha256 = request.path_params["sha256"]
        state = self._state()
        offers = Offers(state)
        before, after, changes = both_bundles(offers, state, sha256)
        approval, pinned = offers.approval(), ClientKit.load(self.kit).policy.app_sha256
        refused = f"policy.toml agrees to the app {pinned} only; change app-sha256 there first."
        return _html(
            render(
                "app.html.j2",
                title="An offered app",
                app=sha256,
                installed=before.sha256,
                summary=changes.lines(),
                lines=list(_marked(unified(before, after))),
                approved=approval is not None and approval.app == sha256,
                refused=refused if pinned is not None and pinned != sha256 else "",
                view_proof=self._view_proof(sha256, before.sha256),
            )
        )

    async def _approve(self, request: Request) -> Response:
        sha256 = request.path_params["sha256"]
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _FORM_BYTES:
                return _message("Refused", "This form does not belong to this page.", 413)
        proof = parse_qs(body.decode("latin-1")).get("seen", [""])[0]
        return await in_thread(partial(self._agree, sha256, proof))

    def _agree(self, sha256: str, proof: str) -> Response:
        state = self._state()
        before, _, _ = both_bundles(Offers(state), state, sha256)
        if not hmac.compare_digest(proof.encode(), self._view_proof(sha256, before.sha256).encode()):
            return _message(
                "Refused", "The difference of this app has changed, or was not shown; look at it again.", 403
            )
        approve(self.kit, self.state_dir, sha256)
        return RedirectResponse(f"/apps/{sha256}", status_code=303)

    def _view_proof(self, sha256: str, installed: str) -> str:
        """Proof that the owner opened the page with this difference; no other site can make it."""
        return hmac.new(self.secret, f"fedcore/owner-page/seen/v1 {installed} {sha256}".encode(), "sha256").hexdigest()

    def _state(self) -> Path:
        return self.state_dir or ClientKit.load(self.kit).folder / "state"


def serve(kit: Path, state_dir: Path | None, *, say: Callable[[str], None]) -> None:
    """Serve the page at a free port of the loopback until Ctrl-C; `say` gets its address."""
    import uvicorn

    read_status(kit, state_dir)  # reports any error in the kit here
    with socket.create_server(("127.0.0.1", 0)) as listening:
        page = OwnerPage(kit, state_dir, listening.getsockname()[1])
        config = uvicorn.Config(
            page.application(), log_level="error", access_log=False, server_header=False, lifespan="off", ws="none"
        )
        say(page.url)
        uvicorn.Server(config).run(sockets=[listening])


def _marked(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The lines of a unified diff, each with its kind."""
    for line in lines:
        yield {"+": "add", "-": "gone"}.get(line[:1], "same") if line[:3] not in ("+++", "---") else "name", line


def _html(text: str) -> Response:
    return Response(text, media_type="text/html")


def _message(title: str, text: str, status: int) -> Response:
    return Response(render("message.html.j2", title=title, text=text), media_type="text/html", status_code=status)


def _digest(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()
