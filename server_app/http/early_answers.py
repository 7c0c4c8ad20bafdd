"""Answers sent before the request's body was read: on standby, to a stranger, or because of the request's head.

What is left of a body is the next thing on its connection. Nobody reads it any more, so the next request there would
never be heard, by a server that keeps the connection, and an end without a word would reset it, upon which peers lose
the answer (RFC 9112, section 9.6). So the rest is read before the answer goes out if it is short, and the
connection is kept; elsewhere the answer says that the connection is closed, and what still comes is thrown away for a
moment before it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedcore.wire.chunks import PART_BYTES

KEEP_BYTES: Final = 1 << 20
"""A rest of a body that is no longer is read to its end, so that the connection can be kept,"""
KEEP_SECONDS: Final = 1.0
"""if it is there that soon."""
CLOSE_BYTES: Final = PART_BYTES
CLOSE_SECONDS: Final = 2.0
"""How much is thrown away, and how long, before a connection is closed: who writes without reading hears why."""
CLOSE: Final = (b"connection", b"close")
UNREAD_KEY: Final = "fedcore.unread"
"""Where the scope of a request has how many bytes of its body were thrown away."""


class EarlyAnswers:
    """Stands before an application that may answer before it has read a request's body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; requests without a body as they are."""
        if scope["type"] != "http" or announced_length(scope["headers"]) == 0:
            await self._app(scope, receive, send)
            return
        cycle = _RequestCycle(scope, receive, send)
        await self._app(scope, cycle.receive, cycle.send)


class _RequestCycle:
    """One request with a body, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._announced = announced_length(scope["headers"])
        self._waits_for_leave = any(name.lower() == b"expect" for name, _ in scope["headers"])
        self._read = 0
        self._ended = False  # the body, or the connection
        self._closing = False

    async def receive(self) -> Message:
        """The next of the request, noted."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._waits_for_leave = False
            self._read += len(message.get("body", b""))
            self._ended = self._ended or not message.get("more_body", False)
        else:
            self._ended = True
        return message

    async def send(self, message: Message) -> None:
        """A message of the answer; the last one may take a moment longer than it does."""
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            self._closing = CLOSE in headers
            if not self._closing and not await self._may_keep():
                self._closing = True
                message = {**message, "headers": [*headers, CLOSE]}
        elif self._closing and not self._ended and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._read_on(CLOSE_BYTES, CLOSE_SECONDS)
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _may_keep(self) -> bool:
        """Whether the body is read to its end, which a short one is here.

        One of unknown length is left alone: a megabyte of it in chunks of a byte keeps the processor busy for seconds.
        So is one that waits for leave to be sent (RFC 9110, section 10.1.1): to read would be to give it.
        """
        if not self._ended and self._announced is not None and not self._waits_for_leave:
            left = self._announced - self._read
            if left <= KEEP_BYTES:
                await self._read_on(left, KEEP_SECONDS)
        return self._ended

    async def _read_on(self, most: int, seconds: float) -> None:
        """Read and throw away, until the body has ended or one of the bounds is reached."""
        begun = self._read
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._ended and self._read - begun <= most:
                    await self.receive()
        self._scope[UNREAD_KEY] = self._scope.get(UNREAD_KEY, 0) + self._read - begun


def announced_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """How long the body is said to be; None for one in chunks."""
    fields = {name.lower(): value for name, value in headers}
    if b"transfer-encoding" in fields:
        return None
    length = fields.get(b"content-length", b"0")
    return int(length[:18]) if length.isdigit() else None
