"""TLS handshakes that come to no good end: why, and that no socket stays of them.

httpx closes the socket after an error and leaves it open after a cancellation, until the garbage collector finds it
(httpcore 1.0, `AnyIOStream.start_tls`). The trace extension shows the socket as it is made.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from client_app.output import clean


class Handshake:
    """Follows the connection of one request; for `extensions={"trace": Handshake().trace}`."""

    __slots__ = ("_stream",)

    def __init__(self) -> None:
        self._stream: Any = None

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Take note of a step of httpcore; close the stream when its handshake does not come to an end."""
        match event:
            case "connection.connect_tcp.complete":
                self._stream = info["return_value"]
            case "connection.start_tls.complete":
                self._stream = None
            case "connection.start_tls.failed" if self._stream is not None:
                await self._stream.aclose()


def certificate_failure(error: BaseException | None) -> str | None:
    """Why the certificate was refused, when that is at the root of `error`."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return clean(error.verify_message)
        error = error.__cause__ or error.__context__
    return None
