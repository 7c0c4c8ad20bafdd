"""Answers of a standby server: another one leads, except for health, documentation and the page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
    on_refusal
        Gets each request that is refused.
    leader
        Address of the server that leads, for the one who is refused; empty if it is not known.
    """

    def __init__(
        self,
        app: ASGIApp,
        leads: Callable[[], bool],
        trouble: Callable[[], str],
        on_refusal: Callable[[Scope], None] = lambda _: None,
        leader: Callable[[], str] = str,
    ) -> None:
        self._app = app
        self._leads = leads
        self._trouble = trouble
        self._on_refusal = on_refusal
        self._leader = leader
        self._open: set[_LeaderAnswer] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may be answered."""
        if scope["type"] != "http" or scope["path"].startswith(_ALWAYS) or scope["path"] == _PAGE:
            await self._app(scope, receive, send)
        elif self._leads():
            await self._serve(scope, receive, send)
        else:
            self._on_refusal(scope)
            await self._refuse(scope, receive, send)

    async def refuse_open(self) -> None:
        """This server leads no more: refuse what waits for an answer, which may depend on a database that is away."""
        await asyncio.gather(*(answer.refuse() for answer in self._open), return_exceptions=True)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _LeaderAnswer(self._leads, receive, send, lambda: self._refuse(scope, receive, send))
        self._open.add(answer)
        try:
            await self._app(scope, answer.receive, answer.send)
            await answer.settle()
        finally:
            self._open.discard(answer)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        trouble = self._trouble()
        text = f"{_TEXT} ({trouble})" if trouble else _TEXT
        leader = self._leader()
        refusal = (
            Rejection(ProblemKind.NOT_LEADING, text, leader=leader)
            if leader
            else Rejection(ProblemKind.NOT_LEADING, text)
        )
        await problem_response(refusal)(scope, receive, send)


class _LeaderAnswer:
    """An answer that was made while this server led is not begun once it does not: another may say otherwise."""

    def __init__(
        self, leads: Callable[[], bool], receive: Receive, send: Send, refusal: Callable[[], Awaitable[None]]
    ) -> None:
        self._leads = leads
        self._receive = receive
        self._send = send
        self._refusal = refusal
        self._has_begun = False
        self._refusing: asyncio.Future[None] | None = None

    async def receive(self) -> Message:
        """The next of the request; its end, for one that was refused."""
        return {"type": "http.disconnect"} if self._refusing is not None else await self._receive()

    async def send(self, message: Message) -> None:
        """A message of the answer, unless the request was or is to be refused."""
        if message["type"] == "http.response.start" and not self._leads():
            await self.refuse()
        elif self._refusing is None:
            self._has_begun = True
            await self._send(message)

    async def refuse(self) -> None:
        """Refuse the request, unless its answer has begun."""
        if not self._has_begun and self._refusing is None:
            self._refusing = asyncio.ensure_future(self._refusal())
        await self.settle()

    async def settle(self) -> None:
        """Wait for a refusal, which may first read the rest of a body: the request must not end before."""
        if self._refusing is not None:
            await asyncio.shield(self._refusing)
