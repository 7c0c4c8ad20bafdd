"""Server-sent events: streaming answers and the limits on how many are open."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fedcore.wire.problems import ProblemKind
from fedcore.wire.watch import Role
from server_app.polling import HungUp, while_connected
from server_app.rejection import Rejection

EVENT_STREAM: Final = "text/event-stream"
COMMENT: Final = b": still here\n\n"


@dataclass(slots=True, kw_only=True)
class StreamSlots:
    """Counts the streams that are open: of viewers together, of operators together, and of one address."""

    most: dict[Role, int] = field(default_factory=lambda: {Role.VIEWER: 400, Role.OPERATOR: 100})
    each: int = 50
    _of_role: Counter[Role] = field(default_factory=Counter)
    _of_address: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def reserve(self, role: Role, address: str) -> Iterator[None]:
        """A slot for one stream; Rejection (busy, too-many-streams) if none is free."""
        if self._of_role[role] >= self.most[role]:
            raise Rejection(ProblemKind.BUSY, f"{self.most[role]} live streams of {role.value}s are open; ask again")
        if self._of_address[address] >= self.each:
            raise Rejection(ProblemKind.TOO_MANY_STREAMS, f"{self.each} live streams of this address are open")
        self._of_role[role] += 1
        self._of_address[address] += 1
        try:
            yield
        finally:
            self._of_role[role] -= 1
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def of_role(self, role: Role) -> int:
        """How many of operators, or of viewers, are open."""
        return self._of_role[role]

    @property
    def open(self) -> int:
        """How many are open."""
        return self._of_role.total()


class EventStream(Response):
    """Sends what `chunks` makes, until that ends or the peer leaves.

    chunks
        Pieces of the stream.
    slot
        Entered as long as the stream lasts.
    """

    media_type = EVENT_STREAM

    def __init__(self, chunks: AsyncIterator[bytes], slot: contextlib.AbstractContextManager[None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; Rejection before anything was sent."""
        with self._slot:
            while (await receive()).get("more_body", False):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with contextlib.aclosing(self._chunks) as chunks:  # type: ignore[type-var]
                with contextlib.suppress(HungUp):
                    async with while_connected(receive):
                        async for chunk in chunks:
                            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
