"""Answers of a standby server: another one leads, except for health, documentation and the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedcore.wire.problems import ProblemKind
from server_app.http.problems import problem_response
from server_app.rejection import Rejection

_ALWAYS: Final = ("/healthz", "/metrics", "/docs", "/openapi.json", "/page/")
_PAGE: Final = "/"
_TEXT: Final = "another server of this federation leads; ask it, or again soon"


class Standby:
    """Stands before an application whose server may not lead.

    leads
        Whether the server leads.
    trouble
        Why that is not clear, or may soon end; empty if nothing is wrong.
    """

    def __init__(self, app: ASGIApp, leads: Callable[[], bool], trouble: Callable[[], str]) -> None:
        self._app = app
        self._leads = leads
        self._trouble = trouble

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may be answered."""
        if scope["type"] != "http" or scope["path"].startswith(_ALWAYS) or scope["path"] == _PAGE:
            await self._app(scope, receive, send)
        elif self._leads():
            await self._app(scope, receive, self._while_leading(scope, receive, send))
        else:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        trouble = self._trouble()
        text = f"{_TEXT} ({trouble})" if trouble else _TEXT
        await problem_response(Rejection(ProblemKind.NOT_LEADING, text))(scope, receive, send)

    def _while_leading(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """An answer that was made while this server led is not begun once it does not: another may say otherwise."""
        refused = False

        async def checked(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and not self._leads():
                refused = True
                await self._refuse(scope, receive, send)
            elif not refused:
                await send(message)

        return checked
