"""The socket of a TLS handshake that is given up, closed.

httpx closes it after an error and leaves it open after a cancellation, until the garbage collector finds it
(httpcore 1.0, `AnyIOStream.start_tls`). The trace extension shows the socket as it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
