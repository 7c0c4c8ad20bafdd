"""A server process that dies after a number of writes, as by kill -9: nothing that it began comes to an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from fedcore.wire.base import Message
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.secure import SecureExchange
from server_app.rejection import Rejection
from server_app.storage.database import Database, PendingWrite

T = TypeVar("T")
ANSWERS = ("cohort_for", "delivery_for", "survivors_for", "signatures_for")


class Gone(Exception):
    """The process that was asked is dead."""


@dataclass
class Life:
    """One process. writes: after how many it dies, None for never; puts: whether objects put or cut are some too."""

    writes: int | None
    puts: bool
    count: int = 0
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    exchange: Any = None
    writing: set[asyncio.Future[Any]] = field(default_factory=set)

    async def write(self, work: Awaitable[T], *, counts: bool) -> T:
        """A write of this process: done and told, done and not told any more, or not done."""
        if self.count == self.writes:  # it is to die before this one
            self.dead.set()
        await self.if_alive(work)
        writing = asyncio.ensure_future(work)
        self.writing.add(writing)
        writing.add_done_callback(self._has_written)
        result = await asyncio.shield(writing)
        self.count += counts
        if self.count == self.writes:
            self.dead.set()
        await self.if_alive()
        return result

    def _has_written(self, writing: asyncio.Future[Any]) -> None:
        self.writing.discard(writing)
        if not writing.cancelled():
            writing.exception()  # of a dead process nobody asks for it

    async def if_alive(self, work: Any = None) -> None:
        if self.dead.is_set():
            if work is not None:
                work.close()
            raise asyncio.CancelledError

    async def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """The answer of this process; raises Gone where it dies first."""
        asking, dying = asyncio.ensure_future(work), asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait({asking, dying}, return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise Gone
            return asking.result()
        finally:
            for task in (asking, dying):
                task.cancel()
            await asyncio.gather(asking, dying, return_exceptions=True)

    async def settle(self) -> None:
        """What a dead process had begun to write is there or not, and never comes later."""
        await asyncio.gather(*self.writing, return_exceptions=True)


class Dying:
    """A store, or objects, whose methods of some names are writes of a life. counted: those that count."""

    def __init__(
        self,
        inner: Any,
        life: Life,
        *,
        writes: Collection[str],
        counted: Collection[str],
        look: Callable[[], None],
    ) -> None:
        self._inner, self._life, self._look = inner, life, look
        self._writes, self._counted = writes, counted

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in self._writes:
            return method

        async def write(*arguments: Any, **named: Any) -> Any:
            self._look()
            try:
                return await self._life.write(method(*arguments, **named), counts=name in self._counted)
            finally:
                self._look()

        return write


class DyingDatabase(Database):
    """A database each of whose commits, whatever it holds, is a write of a life."""

    def __init__(self, inner: Database, life: Life, look: Callable[[], None]) -> None:
        super().__init__(inner.engine)
        self._life, self._look = life, look

    async def commit_together(self, batch: list[PendingWrite]) -> bool:
        self._look()
        try:
            return await self._life.write(super().commit_together(batch), counts=True)
        except asyncio.CancelledError:
            for entry in batch:
                entry.outcome.cancel()
            return True
        finally:
            self._look()


class DyingTransport(httpx.AsyncBaseTransport):
    """The way to an application; nobody is there once its process is dead."""

    def __init__(self, inner: httpx.AsyncBaseTransport, life: Life) -> None:
        self._inner, self._life = inner, life

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._life.ask(self._inner.handle_async_request(request))
        except Gone:
            raise httpx.ConnectError("the server is dead", request=request) from None


@dataclass
class Witness:
    """What each client could be told, ever, by whichever process: it must never be two things."""

    seen: dict[tuple[int, str, int], Message] = field(default_factory=dict)
    equivocations: list[tuple[int, str, int]] = field(default_factory=list)

    def look(self, exchange: Exchange | None) -> None:
        """Ask everything in the name of everybody."""
        if not isinstance(exchange, SecureExchange) or exchange.stages.over:
            return
        for client in exchange.task.cohort:
            for question in ANSWERS:
                try:
                    answer = getattr(exchange, question)(client)
                except Rejection:
                    continue
                key = (exchange.task.exchange, question, client)
                if answer is not None and self.seen.setdefault(key, answer) != answer:
                    self.equivocations.append(key)
