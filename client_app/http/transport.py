"""Protocol of the requests to the server, independent of what carries them.

`client_app.http.http_transport.HttpTransport` does it over HTTPS; a test may put the server in the same process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from client_app.http.retry import Retry
from fedcore.monitoring.line_speed import LineSpeed
from fedcore.wire.base import Message

LONG_POLL_SECONDS: Final = 25
"""How long the agent lets the server hold a request that has no answer yet."""

Answer = TypeVar("Answer", bound=Message)
SignRequest = Callable[[str, str, bytes], Mapping[str, str]]
"""(method, path and query, SHA-256 of the body) -> the headers that sign them."""


@dataclass(slots=True)
class ByteCount:
    """Bytes sent and received, bodies and headers, without what TLS adds."""

    up: int = 0
    down: int = 0


class Transport(Protocol):
    """Requests to the server of a federation, each sent again until it is answered or `Retry` ends it.

    Raises everywhere: ServerUnreachable if nobody answers in time, Unauthorized if the server is another one or does
    not accept the client, Refused for any other problem document, ProtocolViolation("malformed") for an answer that is
    none.
    """

    interruptions: int
    """How often a server was away. Another one, or a new one, may answer next."""
    traffic: ByteCount

    @property
    def url(self) -> str:
        """Where the next request goes."""
        ...

    @property
    def received(self) -> int | None:
        """Bytes that are here of the model that is being downloaded; None if none is."""
        ...

    @property
    def line(self) -> LineSpeed:
        """How fast the line is, by the transfers so far."""
        ...

    def sign_with(self, sign: SignRequest) -> None:
        """Sign all further requests with this; the client's key was replaced."""
        ...

    async def get(
        self,
        path: str,
        answer: type[Answer],
        *,
        wait: float | None = None,
        retry: Retry | None = None,
        limit: int | None = None,
        read: Callable[[bytes], Answer] | None = None,
        on_headers: Callable[[Mapping[str, str]], None] | None = None,
        **query: str | int,
    ) -> Answer | None:
        """GET a control message; None for 204.

        Args:
            path: of the route.
            answer: what the message is.
            wait: how many seconds the server may hold the request.
            retry: in place of the transport's own rule.
            limit: bytes of the answer, if fewer than usual are allowed.
            read: parses the answer, in place of pydantic.
            on_headers: gets the headers of the answer.
            query: parameters of the request.
        """
        ...

    async def put(
        self, path: str, message: Message, answer: type[Answer], *, wait: float, is_large: bool = False
    ) -> Answer | None:
        """PUT a control message; the answer may be what it leads to, which the server awaits for `wait` seconds.

        Args:
            path: of the route.
            message: what is sent.
            answer: what it may lead to.
            wait: how many seconds the server may hold the request.
            is_large: whether the server has more to do before than with a control message, as at the end of an upload.
        """
        ...

    async def send(self, method: str, path: str, message: Message, *, retry: Retry | None = None) -> None:
        """PUT or POST a control message whose answer does not matter."""
        ...

    async def ask(
        self, method: str, path: str, message: Message, answer: type[Answer], *, retry: Retry | None = None
    ) -> Answer:
        """PUT or POST a control message and return the answer.

        Fields that are None are left out, since an older server may not know them.
        """
        ...

    async def put_octets(
        self, path: str, content: memoryview, *, sha256: bytes, is_there: Callable[[], Awaitable[bool]]
    ) -> None:
        """PUT bytes.

        Args:
            path: of the route.
            content: the bytes, which are sent from where they lie.
            sha256: their SHA-256.
            is_there: asked before every further attempt; True ends it. It also gets to hear a refusal: a server that
                refuses a body early resets the connection, and its reason may be lost, unless a small request asks.
        """
        ...

    async def download(self, path: str, target: Path, *, size: int, sha256: str, base: str = "") -> bool:
        """GET a model into a file, which stays as it is unless the bytes have the announced digest.

        Returns whether the difference to `base` came in place of the model: then only the model that it makes can be
        checked. Raises ProtocolViolation("model-digest") if the bytes are others than announced.

        Args:
            path: of the route.
            target: the file.
            size: the most bytes that may come.
            sha256: digest of the model.
            base: the SHA-256 of a model that is here, "" for none.
        """
        ...
