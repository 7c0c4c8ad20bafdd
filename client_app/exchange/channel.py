"""The requests of one exchange to the server, and its lines in the owner's log and spans in the traces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar
from urllib.parse import quote

from client_app.exchange.client import Client
from client_app.exchange.upload import Parts, send_missing_parts, send_parts
from client_app.http.transport import LONG_POLL_SECONDS
from fedcore.errors import Refused
from fedcore.monitoring import formatting
from fedcore.system.concurrency import in_thread
from fedcore.wire.base import Message
from fedcore.wire.problems import ProblemKind
from fedcore.wire.secagg import SurvivorsOut
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import ManifestIn

POLL_PAUSE: Final = 0.05
"""Seconds between two polls, so that a server that does not hold them gets no busy loop out of its clients."""

_PARTS: Final = "update/parts"
_SPANS: Final = {"model": "download", "upload": "mask and upload", "done": "take part"}
"""Names of stages as spans."""

Out = TypeVar("Out", bound=Message)


def exchange_path(run: str, exchange: int) -> str:
    """The prefix of the paths of an exchange's routes."""
    return f"/v1/runs/{quote(run, safe='')}/exchanges/{exchange}"


@dataclass(frozen=True, slots=True)
class ExchangeChannel:
    """One client's requests in one exchange."""

    task: Task
    client: Client

    def path(self, route: str) -> str:
        """The path of a route of this exchange."""
        return f"{exchange_path(self.task.run, self.task.exchange)}/{route}"

    async def put(self, route: str, message: Message) -> None:
        """Send a message that has no answer."""
        await self.client.transport.send("PUT", self.path(route), message)

    async def step(
        self,
        route: str,
        message: Message,
        following: str,
        answer: type[Out],
        send_again: Callable[[], Awaitable[object]] | None = None,
    ) -> Out:
        """Send a message and get the result of its stage, in the same request if that comes soon; as `poll`."""
        result = await self.client.transport.put(self.path(route), message, answer, wait=LONG_POLL_SECONDS)
        return result if result is not None else await self.poll(following, answer, send_again)

    async def poll(
        self, route: str, answer: type[Out], send_again: Callable[[], Awaitable[object]] | None = None
    ) -> Out:
        """Ask until the server has an answer; the caller bounds how long.

        Args:
            route: what to ask for.
            answer: its type.
            send_again: sends again what the answer follows from, after the server was away: it may have been
                restored from a backup without it, and would wait for it.
        """
        transport = self.client.transport
        interruptions = transport.interruptions
        while True:
            result = await transport.get(self.path(route), answer, wait=LONG_POLL_SECONDS)
            if result is not None:
                return result
            if send_again is not None and transport.interruptions != interruptions:
                interruptions = transport.interruptions
                await send_again()
            await asyncio.sleep(POLL_PAUSE)

    async def upload(self, parts: Parts, size: int, done: str) -> str:
        """Send an update of `size` bytes, part by part; returns the digest for its manifest."""
        started = self.client.clock()
        form: Literal["masked", "readable"] = "masked" if self.task.aggregation == "secure" else "readable"
        await in_thread(self.client.ledger.send, self.task.run, self.task.exchange, form, size)
        digest = await send_parts(self.client.transport, self.path(_PARTS), parts, size=size)
        self.log("upload", f"{done} {formatting.size(size)}", started)
        return digest

    async def end_upload(
        self, manifest: ManifestIn, parts: Callable[[], Parts], *, wait: float = 0.0
    ) -> SurvivorsOut | None:
        """End the upload; if the server restarted meanwhile, send again what it lost.

        Returns the survivors if the server names them within `wait` seconds, as it does in a secure exchange alone.
        """
        while True:
            started = self.client.clock()
            try:
                transport, path = self.client.transport, self.path("manifest")
                return await transport.put(path, manifest, SurvivorsOut, wait=wait, is_large=True)
            except Refused as refused:
                if refused.kind != ProblemKind.PARTS_MISSING:
                    raise
            count = await send_missing_parts(self.client.transport, self.path(_PARTS), parts(), size=manifest.size)
            self.log("upload", f"sent {count} parts again, which the server had lost", started)
            await asyncio.sleep(POLL_PAUSE)

    def log(self, stage: str, text: str, since: float) -> None:
        """Log the end of a stage that began at `since` on the client's clock."""
        self.client.output.info(stage, text, seconds=round(self.client.clock() - since, 3))
        self.trace(_SPANS.get(stage, stage), since)

    def trace(self, name: str, since: float) -> None:
        """Record a span from `since` to now."""
        self.client.traces.record(name, self.task.run, self.task.exchange, began=since, ended=self.client.clock())
