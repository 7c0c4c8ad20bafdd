"""uvicorn's HTTP protocol with limits on what a connection may ask of it.

uvicorn over httptools waits for a head without an end, takes heads of any size and number of fields, keeps as many
requests as a peer sends before it reads an answer, and waits for ever for an answer to be read. Each lets one peer hold
connections, memory or the processor before anybody knows who it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedcore.wire.problems import ProblemKind
from server_app.http.connection_limiter import CONNECTION_KEY, Connection, ConnectionLimiter
from server_app.http.large_bodies import LEAST_BYTES, LongBody
from server_app.http.problems import MEDIA_TYPE, problem_response
from server_app.rejection import Rejection

MOST_FIELDS: Final = 100
"""Fields of a head; clients send a dozen, a proxy adds a few."""
MOST_PIPELINED: Final = 8
"""Requests that may follow before the first is answered; our clients send none."""
MOST_FAILED_REQUESTS: Final = 5
"""Requests with a wrong signature or token after which a stranger's connection is closed."""


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections that ask for too much or too slowly, and tells the limiter who is authenticated.

    unread_seconds: how long an answer may make no progress; long, since the kernel reports it in large steps.
    """

    header_bytes: ClassVar[int] = 64 * 1024
    header_seconds: ClassVar[float] = 10.0
    unread_seconds: ClassVar[float] = 120.0

    def __init__(self, *, limiter: ConnectionLimiter, connection: Connection, **settings: Any) -> None:
        super().__init__(**settings)
        self._limiter = limiter
        self.connection = connection
        self._failed_requests = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._body_left = 0  # of a body of known length
        if not connection.who:
            self.timeout_keep_alive = math.ceil(self.header_seconds)

    @property
    def awaits_head(self) -> bool:
        """Whether the time is running in which the head of a request has to come."""
        return self._head_timer is not None

    # --- who the peer is (`ConnectionState`) --------------------------------------------------------------------

    def mark_authenticated(self, who: str) -> None:
        """A request on this connection has shown who sends it."""
        self._limiter.mark_authenticated(self.connection, who)
        self._failed_requests = 0
        self.timeout_keep_alive = self.config.timeout_keep_alive

    def waiting(self) -> AbstractContextManager[None]:
        """Nothing is transferred meanwhile: a dead line is noticed sooner."""
        return self.connection.waiting()

    def mark_suspicious(self) -> bool:
        """A request has shown nothing; whether the connection should be closed. A proxy's has others behind it."""
        self._failed_requests += 1
        return self._failed_requests >= MOST_FAILED_REQUESTS and not self.connection.is_proxy

    # --- the connection -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer connected; it has `header_seconds` for the head of its first request."""
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        self._stop_head_timer()
        self.resume_writing()
        self._limiter.leave(self.connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived; those of a head that is still open count against its limit."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._open_bytes += len(data)
            if self._open_bytes > self.header_bytes:
                self.transport.abort()
        elif self._body_left >= LEAST_BYTES and not self.pipeline:
            self._receive_long_body()

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is answered."""
        super().pause_writing()
        if self._unread_timer is None:
            self._watch_unread(math.inf)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _watch_unread(self, before: float) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread >= before:
            self.transport.abort()
        else:
            self._unread_timer = self.loop.call_later(self.unread_seconds, self._watch_unread, unread)

    # --- the head of a request ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request: from here on its head must arrive in time."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise ValueError("more requests than answers were read")
        super().on_message_begin()
        self.scope[CONNECTION_KEY] = self  # type: ignore[typeddict-unknown-key]
        self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field is complete; an exception ends the connection."""
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > self.header_bytes or len(self.headers) >= MOST_FIELDS:
            raise ValueError("the head of the request is too long")
        super().on_header(name, value)

    def on_headers_complete(self) -> Any:
        """The head is there."""
        self._in_head = False
        self._stop_head_timer()
        self._body_left = _body_bytes(self.headers)
        return super().on_headers_complete()

    # --- the body -----------------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        """Bytes of a body; the first that wait are handed on as they are, which saves uvicorn's two copies of them."""
        self._body_left -= len(body)
        if self.cycle.body or self.cycle.response_complete:
            super().on_body(body)
            return
        self.cycle.body = body  # type: ignore[assignment]
        if len(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def _receive_long_body(self) -> None:
        """Let what is left of the body pass the parser by, until all of it is here."""
        cycle, size = self.cycle, self._body_left
        self._body_left = 0

        def take(block: memoryview, is_last: bool) -> None:
            if is_last:
                self.parser = httptools.HttpRequestParser(self)  # the one before waits for the body
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.transport.set_protocol(self)
            if not cycle.response_complete:  # nobody would have the reading go on after that
                self.flow.pause_reading()
                cycle.body = block  # type: ignore[assignment]
                cycle.more_body = not is_last
                cycle.message_event.set()

        if not cycle.response_complete:
            self.flow.pause_reading()
        self.transport.set_protocol(LongBody(self, size, take, self.loop.time))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not an HTTP request, unless another answer is under way, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        refusal = Rejection(ProblemKind.MALFORMED, "this is no HTTP request, or its head is too long", status=400)
        body = bytes(problem_response(refusal).body)
        lines = ("HTTP/1.1 400 Bad Request", f"content-type: {MEDIA_TYPE}", f"content-length: {len(body)}")
        self.transport.write("\r\n".join([*lines, "connection: close", "", ""]).encode("ascii") + body)
        self.transport.close()

    # --- times --------------------------------------------------------------------------------------------------

    def _begin_head(self) -> None:
        self._in_head = True
        self._open_bytes = 0
        self._field_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.header_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _body_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """How long the body is said to be; 0 if that is unknown, since it comes in chunks."""
    fields = dict(headers)
    length = fields.get(b"content-length", b"")
    return int(length[:18]) if length.isdigit() and b"transfer-encoding" not in fields else 0
