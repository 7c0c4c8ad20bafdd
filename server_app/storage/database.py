"""Transactions: reads, and writes that share a commit.

A commit is on the disk when it returns (SQLite: WAL with synchronous = FULL). That costs milliseconds, and all clients
of a stage answer at about the same time; so writes that come while a commit is under way wait for the next one, and
share it (group commit). Where one of them fails, all are undone and done again, each by itself.

Each transaction runs in a task of the database's own, which the cancelling of its caller (a request that was broken
off) does not reach: a connection that is left in the middle of a statement is lost to the pool, and with aiosqlite its
thread may never answer again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import CursorResult, Executable, RowMapping, Select, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fedcore.errors import LeaseLost, StorageDamaged, StorageUnavailable
from server_app.storage.engines import READ_ONLY
from server_app.storage.tables import Base, LeaseRow
from server_app.storage.trouble import explained

T = TypeVar("T")
Work: TypeAlias = Callable[[AsyncConnection], Awaitable[T]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease that was taken; `generation` tells it from those taken before and after (a fencing token)."""

    name: str
    holder: str
    generation: int


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """One caller's writes, and the future of their result."""

    work: Work[Any]
    fenced: bool
    outcome: asyncio.Future[Any]

    def resolve(self, value: Any = None, error: Exception | None = None) -> None:
        """Give the caller the result or error, unless it was cancelled."""
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(value)


Change = Callable[[AsyncConnection], Awaitable[None]]
"""An additional write for a transaction."""


class Database:
    """Runs transactions. Raises StorageFull, StorageUnavailable, StorageDamaged; LeaseLost once it is fenced.

    A write that raised StorageUnavailable may still have been done, if the connection broke in the commit.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._reader = engine.execution_options(**{READ_ONLY: True})
        self._pending: list[PendingWrite] = []
        self._committer: asyncio.Task[None] | None = None
        self._reads: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._fence: Select[Any] | None = None

    def upsert(self, table: type[Base]) -> sqlite.Insert:
        """An INSERT that knows ON CONFLICT; SQLAlchemy has one for each database, alike in what is used here."""
        of_postgresql = self.engine.dialect.name == "postgresql"
        return postgresql.insert(table) if of_postgresql else sqlite.insert(table)  # type: ignore[return-value]

    async def close(self) -> None:
        """Begin nothing more, finish what is being read and written, then close all connections."""
        self._closed = True
        under_way: set[asyncio.Task[Any]] = {*self._reads, *([self._committer] if self._committer else [])}
        if under_way:
            await asyncio.wait(under_way)
        await self.engine.dispose()

    def fence(self, lease: Lease | None) -> None:
        """From now on every write checks that this lease was not taken over, and holds off a taking until it is done.

        The lock lasts to the end of the transaction (PostgreSQL: FOR SHARE; SQLite has one writer at a time), so no
        write of an earlier holder can come after a later one's taking.
        """
        if lease is None:
            self._fence = None
            return
        mine = (LeaseRow.name == lease.name, LeaseRow.generation == lease.generation)
        self._fence = select(LeaseRow.generation).where(*mine).with_for_update(read=True)

    async def rows(self, statement: Executable) -> Sequence[RowMapping]:
        """All rows of one statement. Raises what `read` raises."""

        async def work(connection: AsyncConnection) -> Sequence[RowMapping]:
            return (await connection.execute(statement)).mappings().all()

        return await self.read(work)

    async def value(self, statement: Executable) -> Any:
        """The first column of the only row of one statement, None if there is no row. Raises what `read` raises."""

        async def work(connection: AsyncConnection) -> Any:
            return (await connection.execute(statement)).scalar_one_or_none()

        return await self.read(work)

    async def read(self, work: Work[T]) -> T:
        """What `work` finds; all its statements see one state of the database (PostgreSQL: each its own)."""
        self._check_open()
        reading = asyncio.create_task(self._read(work))
        self._reads.add(reading)
        reading.add_done_callback(self._end_read)
        return await asyncio.shield(reading)

    def _end_read(self, reading: asyncio.Task[Any]) -> None:
        self._reads.discard(reading)
        if not reading.cancelled():
            reading.exception()  # of a caller that was cancelled nobody asks for it

    async def _read(self, work: Work[T]) -> T:
        try:
            async with self._reader.begin() as connection:
                return await work(connection)
        except Exception as error:
            if (translated := explained(error)) is error:
                raise
            raise translated from translated.__cause__

    def _check_open(self) -> None:
        if self._closed:
            raise StorageUnavailable("the server is stopping; nothing was taken over, ask again", check="stopping")

    async def execute(self, statement: Executable, *, fenced: bool = True) -> CursorResult[Any]:
        """Run one statement in a transaction. Raises what `write` raises."""
        result: CursorResult[Any] = await self.write(lambda connection: connection.execute(statement), fenced=fenced)
        return result

    async def write(self, work: Work[T], *, fenced: bool = True) -> T:
        """Run `work` in a transaction that others may share; durable on return, undone if it raises."""
        self._check_open()
        entry = PendingWrite(work, fenced, asyncio.get_running_loop().create_future())
        self._pending.append(entry)
        if self._committer is None or self._committer.done():
            self._committer = asyncio.create_task(self._commit_pending())
        result: T = await entry.outcome
        return result

    async def _commit_pending(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            if not await self.commit_together(batch):
                for entry in batch:
                    await self.commit_together([entry])

    async def commit_together(self, batch: list[PendingWrite]) -> bool:
        """Run all in one transaction and resolve them; False, with none resolved, if one of several writes failed."""
        waiting = [entry for entry in batch if not entry.outcome.done()]
        try:
            async with self.engine.begin() as connection:
                if any(entry.fenced for entry in waiting):
                    await self._check_fence(connection)
                values = [await entry.work(connection) for entry in waiting]
        except Exception as error:
            translated = explained(error)
            # Where the database is away all of them fail alike; one by one they would wait for its return in turn.
            if len(waiting) > 1 and not isinstance(translated, StorageUnavailable | StorageDamaged):
                return False
            for entry in waiting:
                entry.resolve(error=translated)
            return True
        for entry, value in zip(waiting, values, strict=True):
            entry.resolve(value)
        return True

    async def _check_fence(self, connection: AsyncConnection) -> None:
        if self._fence is not None and (await connection.execute(self._fence)).first() is None:
            raise LeaseLost("another server of this federation leads now; nothing was taken over")
