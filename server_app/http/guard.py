"""The outermost layer of the application: identity, size, progress and bytes of every request.

An ASGI middleware, so that it sees each message as it passes: the caller is known before the body is
read, a body that is too long or stalls is cut off, and the bytes of an exchange are counted. What
goes wrong here is answered with a problem document like everything else.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedcore.parts import PART_BYTES
from fedcore.wire import ProblemKind
from server_app.http.authentication import Authenticator, ClientCaller
from server_app.http.problems import Rejection, problem_response, rejection_for
from server_app.rosters import Rosters

log = logging.getLogger("fedcore.server")

SCOPE_KEY: Final = "fedcore"
BUNDLE_BYTES: Final = 32 << 20
"""The largest app."""
CONTROL_BYTES: Final = 64 * 1024
CONTROL_BYTES_PER_NEIGHBOUR: Final = 3200
"""The largest control message holds two entries a neighbour, sealed with ML-KEM: 1170 and 1136 bytes before base64."""
MOST_NEIGHBOURS: Final = 1024
LINGER_BYTES: Final = 1 << 20
"""A refused body of up to this size is read to its end, so that the connection can be kept,"""
LINGER_SECONDS: Final = 1.0
"""if it is there that soon."""

ROSTERS_BYTES: Final = 32 << 20
"""The most that is published at once: a roster of 10,000 members has some 1.5 MiB."""

_RUNS_PATH: Final = "/v1/runs"
_ROSTER_PATH: Final = "/v1/roster"
_PART_PATH: Final = re.compile(r"^/v1/.*/update/parts/[0-9]+$")

CountBytes = Callable[[int, int], None]


@dataclass(slots=True, kw_only=True)
class GuardedRequest:
    """What the guard knows about one request; routes find it in the scope.

    caller: the client that sends it; None for others. up, down: bytes of heads and bodies, without TLS and TCP framing.
    count_bytes: where the two are entered once the answer is out, if anybody asked.
    """

    caller: ClientCaller | None
    up: int
    down: int = 0
    body_complete: bool = False
    answered: bool = False
    count_bytes: CountBytes | None = field(default=None, repr=False)


class StalledBody(Rejection):
    """A request body that made no progress for too long."""

    def __init__(self) -> None:
        super().__init__(ProblemKind.MALFORMED, "the body made no progress; send it again", status=408)


@dataclass(slots=True, kw_only=True)
class Guard:
    """Wraps the application. Sizes in bytes, times in seconds.

    rosters: whose members bound a control message.
    """

    app: ASGIApp
    authenticate: Authenticator
    rosters: Rosters
    stall_seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or pass on what is no request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = GuardedRequest(caller=None, up=head_bytes(scope["path"], scope["headers"]))
        scope[SCOPE_KEY] = request
        reader = _Reader(receive, request, self._limit(scope), self.stall_seconds)
        writer = _Writer(send, request, reader)
        try:
            request.caller = self.authenticate(scope)
            reader.refuse_announced_length(scope["headers"])
            await self.app(scope, reader, writer)
            if reader.refusal is not None and not request.answered:
                raise reader.refusal
        except Exception as error:
            await self._answer_failure(error, scope, reader, writer)
        finally:
            if request.count_bytes is not None:
                request.count_bytes(request.up, request.down)

    async def _answer_failure(self, error: Exception, scope: Scope, reader: _Reader, writer: _Writer) -> None:
        if rejection_for(error).kind is ProblemKind.INTERNAL:
            log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        if not writer.request.answered:
            writer.refusing = True
            await problem_response(error)(scope, reader, writer)

    def _limit(self, scope: Scope) -> int:
        """The longest body of a request."""
        path = scope["path"].rstrip("/")
        if path == _RUNS_PATH:
            # base64 is longer by a third; the rest is room for paths and settings.
            return BUNDLE_BYTES * 4 // 3 + (2 << 20)
        if path == _ROSTER_PATH:
            return ROSTERS_BYTES
        if _PART_PATH.search(path) and scope["method"] == "PUT":
            return PART_BYTES
        return CONTROL_BYTES + CONTROL_BYTES_PER_NEIGHBOUR * min(len(self.rosters.members), MOST_NEIGHBOURS)


class _Reader:
    """`receive` with a size limit and a limit on the time without progress."""

    def __init__(self, receive: Receive, request: GuardedRequest, limit: int, stall_seconds: float) -> None:
        self._receive = receive
        self._request = request
        self._limit = limit
        self._stall_seconds = stall_seconds
        self._body_bytes = 0
        self.refusal: Rejection | None = None

    def refuse_announced_length(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise Rejection where Content-Length alone is over the limit."""
        for name, value in headers:
            if name.lower() == b"content-length" and value.isdigit():
                self._check(int(value[:18]))

    async def __call__(self) -> Message:
        if self._request.body_complete or self._request.answered:
            return await self._receive()
        try:
            async with asyncio.timeout(self._stall_seconds):
                message = await self._receive()
        except TimeoutError:
            raise self._refuse(StalledBody()) from None
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._request.up += size
            self._body_bytes += size
            self._request.body_complete = not message.get("more_body", False)
            self._check(self._body_bytes)
        return message

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise self._refuse(
                Rejection(
                    ProblemKind.TOO_LARGE,
                    f"a body at this address may have {self._limit} bytes at most",
                )
            )

    def _refuse(self, refusal: Rejection) -> Rejection:
        # Kept, because frameworks turn whatever ends the reading of a body into an answer of theirs.
        self.refusal = refusal
        return refusal

    async def linger(self) -> None:
        """Read what is left of a short body, for a second at most; without it the connection must be closed."""
        left = LINGER_BYTES
        async with asyncio.timeout(LINGER_SECONDS):
            while not self._request.body_complete and left > 0:
                message = await self._receive()
                if message["type"] != "http.request":
                    return
                self._request.body_complete = not message.get("more_body", False)
                self._request.up += len(message.get("body", b""))
                left -= len(message.get("body", b""))


class _Writer:
    """`send` that counts, and that closes the connection when a body was left unread.

    Once the reader has refused the body, only the guard's own answer (`refusing`) goes out.
    """

    def __init__(self, send: Send, request: GuardedRequest, reader: _Reader) -> None:
        self._send = send
        self._reader = reader
        self.request = request
        self.refusing = False

    async def __call__(self, message: Message) -> None:
        if self._reader.refusal is not None and not self.request.answered and not self.refusing:
            return
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            if not self.request.body_complete and not await self._read_rest():
                headers = [line for line in headers if line[0].lower() != b"connection"]
                headers.append((b"connection", b"close"))
            self.request.answered = True
            self.request.down += head_bytes("", headers)
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body":
            self.request.down += len(message.get("body", b""))
        await self._send(message)

    async def _read_rest(self) -> bool:
        try:
            await self._reader.linger()
        except TimeoutError:
            return False
        return self.request.body_complete


def head_bytes(path: str, headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Bytes of a head in HTTP/1.1: its first line, about, and its fields."""
    return len(path) + 16 + sum(len(name) + len(value) + 4 for name, value in headers)
