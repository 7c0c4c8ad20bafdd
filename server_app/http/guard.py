"""The outermost layer of the application: authentication, limits and byte counts of requests.

An ASGI middleware, so that it sees each message as it passes: the caller is known before the body is
read, a body that is too long, too slow or stalls is cut off, and the bytes of an exchange are counted. What
goes wrong here is answered with a problem document like everything else.

A request of nobody who is known, because it is open to all or because its signature or token is wrong, is answered at
the pace of its address; the number of open requests of one sender is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedcore.errors import Unauthorized
from fedcore.wire.chunks import PART_BYTES
from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import Role
from server_app import logs
from server_app.http.authentication import SAFE, Authenticator, ClientCaller
from server_app.http.connection_limiter import CONNECTION_KEY
from server_app.http.early_answers import CLOSE, UNREAD_KEY, announced_length
from server_app.http.problems import GUARDED, problem_response, rejection_for
from server_app.http.rate_limit import TokenBucket, network_of
from server_app.members.rosters import Rosters
from server_app.members.sessions import LoginSession
from server_app.rejection import Rejection

log = logging.getLogger("fedcore.server")

SCOPE_KEY: Final = "fedcore"
BUNDLE_BYTES: Final = 32 << 20
"""The largest app."""
CONTROL_BYTES: Final = 64 * 1024
CONTROL_BYTES_PER_NEIGHBOUR: Final = 3200
"""The largest control message holds two entries a neighbour, sealed with ML-KEM: 1170 and 1136 bytes before base64."""
MOST_NEIGHBOURS: Final = 1024

IN_FLIGHT: Final = 64
"""Requests of one sender that may be open at once; a client has a handful."""
LEAST_BYTES_A_SECOND: Final = 4096
"""What a body has to make on average, beyond the time that it may stall: 4 MiB in 17 minutes."""
ROSTERS_BYTES: Final = 32 << 20
"""The most that is published at once: a roster of 10,000 members has some 1.5 MiB."""

MODEL_BYTES: Final = 1 << 40
"""The largest model that a run starts from; what the disk has room for is less."""

_RUNS_PATH: Final = "/v1/runs"
_ROSTER_PATH: Final = "/v1/roster"
_MODEL_PATH: Final = re.compile(r"^/v1/models/[0-9a-f]{64}$")
_EXCHANGE_PATH: Final = re.compile(r"^/v1/runs/([0-9a-zA-Z-]{1,64})/exchanges/([0-9]{1,10})/([a-z-]{1,32})")
_GUARDED: Final = [(name.encode(), value.encode()) for name, value in GUARDED.items()]
_PART_PATH: Final = re.compile(r"^/v1/.*/update/parts/[0-9]+$")

CountBytes = Callable[[int, int], None]


@dataclass(slots=True, kw_only=True)
class GuardedRequest:
    """What the guard knows about one request; routes find it in the scope.

    caller: client that sends it; None for others.
    address: of the sender.
    id: in the log and in the answer's head.
    status: of the answer, 0 before it.
    up, down: bytes of heads and bodies, without TLS and TCP framing.
    session: of the person who sends it, if any.
    refused: awaited if a secret in the body was wrong.
    count_bytes: called with `up` and `down` once the answer is out.
    """

    caller: ClientCaller | None
    address: str
    up: int
    id: str
    status: int = 0
    down: int = 0
    session: LoginSession | None = field(default=None, repr=False)
    refused: Callable[[], Awaitable[None]] | None = field(default=None, repr=False)
    body_complete: bool = False
    answered: bool = False
    count_bytes: CountBytes | None = field(default=None, repr=False)

    @property
    def role(self) -> Role:
        """What a person who was let in may see."""
        return self.session.role if self.session is not None else Role.OPERATOR


class StalledBody(Rejection):
    """A request body that made no progress for too long, or too little in all."""

    def __init__(self) -> None:
        super().__init__(ProblemKind.MALFORMED, "the body made no progress; send it again", status=408)


@dataclass(slots=True, kw_only=True)
class Guard:
    """Wraps the application. Sizes are in bytes, times in seconds.

    app
        The application behind the guard.
    authenticate
        Tells who sends a request.
    rosters
        Rosters; the number of members bounds a control message.
    stall_seconds
        How long a body may make no progress.
    strangers
        Rate limit of requests that nobody has signed.
    on_answer
        Gets the status of each answer, 0 if there was none.
    """

    app: ASGIApp
    authenticate: Authenticator
    rosters: Rosters
    stall_seconds: float
    strangers: TokenBucket
    on_answer: Callable[[int], None] = lambda status: None
    under_way: dict[str, int] = field(default_factory=dict, init=False)
    """By sender: how many of its requests wait for their answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or pass on what is no request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with logs.at(request=(request_id := secrets.token_hex(8)), **_log_fields(scope["path"])):
            await self._serve(scope, receive, send, request_id)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        request = GuardedRequest(
            caller=None, address=_address(scope), up=head_bytes(scope["path"], scope["headers"]), id=request_id
        )
        scope[SCOPE_KEY] = request
        reader = _BodyReader(receive, request, self._limit(scope), self.stall_seconds)
        writer = _ResponseWriter(send, request, reader)
        try:
            await self._pass_on(scope, reader, writer)
        except Exception as error:
            await self._answer_failure(error, scope, reader, writer)
        finally:
            self.on_answer(request.status)
            if request.count_bytes is not None:
                request.count_bytes(request.up + scope.get(UNREAD_KEY, 0), request.down)

    async def _pass_on(self, scope: Scope, reader: _BodyReader, writer: _ResponseWriter) -> None:
        """Serve a request of somebody who may make it, when it is its turn."""
        reader.announced = announced_length(scope["headers"])
        try:
            sender = await self.authenticate(scope)
        except Exception as error:
            await self._refuse_stranger(scope, writer, error)
            raise
        writer.request.caller, writer.request.session = sender.client, sender.session
        if sender.client is not None:
            logs.note(client=self.rosters.names[sender.client.client_id])
        if sender.session is not None and sender.session.person:
            logs.note(person=sender.session.person)
            if scope["method"] not in SAFE:
                log.info("%s: %s %s", sender.session.person, scope["method"], scope["path"])
        if not sender.who:
            writer.request.refused = lambda: self._refuse_stranger(scope, writer, Unauthorized("a wrong secret"))
            await self._wait(scope)
        elif sender.session is not None and sender.session.role is Role.VIEWER:
            await self._wait(scope, sender.who)  # at a pace of its own: a link may be in anybody's hands
        elif sender.known_as and (connection := scope.get(CONNECTION_KEY)) is not None:
            connection.mark_authenticated(sender.known_as)
        with self._in_flight(sender.who or _address(scope)):
            reader.refuse_announced_length()
            await self.app(scope, reader, writer)
        if reader.refusal is not None and not writer.request.answered:
            raise reader.refusal

    async def _refuse_stranger(self, scope: Scope, writer: _ResponseWriter, error: Exception) -> None:
        """Have a stranger wait for its refusal; the connection of one that was refused often is closed with it."""
        if isinstance(error, Unauthorized) and (connection := scope.get(CONNECTION_KEY)) is not None:
            writer.closing = connection.mark_suspicious()
        await self._wait(scope)

    async def _wait(self, scope: Scope, who: str = "") -> None:
        who = who or _address(scope)
        seconds = self.strangers.wait(who)
        if seconds > 0.0:
            with self._in_flight(who):
                await asyncio.sleep(seconds)

    @contextlib.contextmanager
    def _in_flight(self, sender: str) -> Iterator[None]:
        """Count a request; Rejection if too many of its sender are open."""
        if self.under_way.get(sender, 0) >= IN_FLIGHT:
            raise Rejection(ProblemKind.BUSY, f"{IN_FLIGHT} requests of this sender are open; wait for an answer")
        self.under_way[sender] = self.under_way.get(sender, 0) + 1
        try:
            yield
        finally:
            self.under_way[sender] -= 1
            if not self.under_way[sender]:
                del self.under_way[sender]

    async def _answer_failure(
        self, error: Exception, scope: Scope, reader: _BodyReader, writer: _ResponseWriter
    ) -> None:
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
        if _MODEL_PATH.search(path) and scope["method"] == "PUT":
            return MODEL_BYTES
        if _PART_PATH.search(path) and scope["method"] == "PUT":
            return PART_BYTES
        return CONTROL_BYTES + CONTROL_BYTES_PER_NEIGHBOUR * min(len(self.rosters.members), MOST_NEIGHBOURS)


class _BodyReader:
    """`receive` with limits on the size, on the time without progress, and on the whole time.

    announced: Content-Length; None if there is none.
    """

    def __init__(self, receive: Receive, request: GuardedRequest, limit: int, stall_seconds: float) -> None:
        self._receive = receive
        self._request = request
        self._limit = limit
        self._stall_seconds = stall_seconds
        self._body_bytes = 0
        self._waited = 0.0
        self.announced: int | None = None
        self.refusal: Rejection | None = None

    def refuse_announced_length(self) -> None:
        """Raise Rejection if Content-Length alone is over the limit."""
        self._check(self.announced or 0)

    async def __call__(self) -> Message:
        if self._request.body_complete or self._request.answered:
            return await self._receive()
        message = await self._receive_soon()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._request.up += size
            self._body_bytes += size
            self._request.body_complete = not message.get("more_body", False)
            self._check(self._body_bytes)
        return message

    async def _receive_soon(self) -> Message:
        """Only the time counts in which this waited for the peer: a full disk or a busy server is not its fault."""
        clock = asyncio.get_running_loop().time
        left = self._stall_seconds + self._body_bytes / LEAST_BYTES_A_SECOND - self._waited
        started = clock()
        try:
            async with asyncio.timeout(min(self._stall_seconds, max(left, 0.0))):
                return await self._receive()
        except TimeoutError:
            raise self._refuse(StalledBody()) from None
        finally:
            self._waited += clock() - started

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


class _ResponseWriter:
    """`send` that counts. closing: whether the answer ends the connection.

    Once the reader has refused the body, only the guard's own answer (`refusing`) goes out.
    """

    def __init__(self, send: Send, request: GuardedRequest, reader: _BodyReader) -> None:
        self._send = send
        self._reader = reader
        self.request = request
        self.refusing = False
        self.closing = False

    async def __call__(self, message: Message) -> None:
        if self._reader.refusal is not None and not self.request.answered and not self.refusing:
            return
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            if self.closing:
                headers.append(CLOSE)
            self.request.answered = True
            self.request.status = message["status"]
            headers.append((b"x-request-id", self.request.id.encode()))
            present = {name.lower() for name, _ in headers}
            headers += [pair for pair in _GUARDED if pair[0] not in present]
            self.request.down += head_bytes("", headers)
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body":
            self.request.down += len(message.get("body", b""))
        await self._send(message)


def _log_fields(path: str) -> dict[str, object]:
    """What a request is about, for the log."""
    match = _EXCHANGE_PATH.match(path)
    return {"run": match[1], "exchange": int(match[2]), "step": match[3]} if match else {}


def _address(scope: Scope) -> str:
    """The address of a request, as a trusted proxy reports it or as the connection has it; no name of a sender."""
    client = scope.get("client")
    return f"address {network_of(client[0]) if client else 'unknown'}"


def head_bytes(path: str, headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Bytes of a head in HTTP/1.1: its first line, about, and its fields."""
    return len(path) + 16 + sum(len(name) + len(value) + 4 for name, value in headers)
