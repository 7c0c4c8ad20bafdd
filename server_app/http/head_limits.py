"""uvicorn's HTTP protocol with limits on the head of a request.

uvicorn over httptools waits for a head without an end and takes heads of any size (measured: 4 MB),
which lets one peer hold connections and memory before anybody knows who it is.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server_app.http.door import KNOWN_KEY, Door, Visit


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections whose head is too long, or is not there in time, and tells the door who is known."""

    header_bytes: ClassVar[int] = 64 * 1024
    header_seconds: ClassVar[float] = 10.0

    def __init__(self, *, door: Door, visit: Visit, **settings: Any) -> None:
        super().__init__(**settings)
        self._door = door
        self._visit = visit
        self.timeout_keep_alive = math.ceil(self.header_seconds)  # of a stranger

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer connected; it has `header_seconds` for the head of its first request."""
        super().connection_made(transport)
        self._in_head = True
        self._open_bytes = 0
        self._field_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(self.header_seconds, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        self._stop_timer()
        self._door.leave(self._visit)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived; those of a head that is still open count against its limit."""
        super().data_received(data)
        if self._in_head:
            self._open_bytes += len(data)
            if self._open_bytes > self.header_bytes:
                self.transport.abort()

    def on_message_begin(self) -> None:
        """The first byte of a request: from here on its head must arrive in time."""
        super().on_message_begin()
        self.scope[KNOWN_KEY] = self._on_known  # type: ignore[typeddict-unknown-key]
        self._in_head = True
        self._open_bytes = 0
        self._field_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.header_seconds, self._head_is_late)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field is complete; an exception makes uvicorn answer 400 and close the connection."""
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > self.header_bytes:
            raise ValueError("the head of the request is too long")
        super().on_header(name, value)

    def on_headers_complete(self) -> Any:
        """The head is there."""
        self._in_head = False
        self._stop_timer()
        return super().on_headers_complete()

    def _on_known(self, who: str) -> None:
        self._door.know(self._visit, who)
        self.timeout_keep_alive = self.config.timeout_keep_alive

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
