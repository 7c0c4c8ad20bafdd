"""What the server remembers, in SQLite: clients, runs, exchanges, receipts, events, and the transcript.

A commit is on the disk when it returns (WAL with synchronous = FULL). That costs milliseconds, and all clients of a
stage answer at about the same time; so writes that come while a commit is under way wait for the next one, and share
it (group commit). Where one of them fails, all are undone and done again, each by itself.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from sqlalchemy import Connection, RowMapping, event, func, insert, inspect, select, update
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from fedcore.errors import ConfigurationError, ConflictingMessage, IllegalTransition, StorageFull
from fedcore.events import Recorded, RunEnded, stamp
from fedcore.secagg import Outcome
from fedcore.transcript import ExchangeRecord, SignedRecord, TranscriptOut, record_hash
from fedcore.wire import ModelRef, RunStatus
from server_app.storage.tables import Base, ClientRow, EventRow, ExchangeRow, ReceiptRow, RecordRow, RunRow

T = TypeVar("T")
SCHEMA_VERSION: Final = 2
"""Of the tables in tables.py, kept in the database as its `user_version`; a change of theirs needs the next number."""
_PAGE: Final = 32
"""Most records in one answer; those of cohorts of 10,000 have a megabyte each."""
_READ_ONLY: Final = "fedcore_read_only"
_PRAGMAS: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 10000",
)


class Store:
    """The database; every method is one transaction. Raises StorageFull on a full disk."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._pending: list[_Write] = []
        self._committer: asyncio.Task[None] | None = None
        self._reader = engine.execution_options(**{_READ_ONLY: True})

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open or create the database at `path`; ConfigurationError for one of another version."""
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        event.listen(engine.sync_engine, "connect", _prepare)
        event.listen(engine.sync_engine, "begin", _begin)
        store = cls(engine)
        try:
            await store._write(lambda connection: connection.run_sync(_make_tables, path))
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Finish what is being written, then close all connections."""
        if self._committer is not None:
            await asyncio.wait({self._committer})
        await self._engine.dispose()

    async def ping(self) -> None:
        """Raise unless the database answers."""
        async with self._reading() as connection:
            await connection.execute(select(1))

    # --- clients --------------------------------------------------------------------------------

    async def remember_client(self, client: int, app_sha256: str, version: str) -> None:
        """Keep which app a client has installed."""
        values = {"app_sha256": app_sha256, "version": version}
        statement = upsert(ClientRow).values(id=client, **values)
        statement = statement.on_conflict_do_update(index_elements=["id"], set_=values)
        await self._write(lambda connection: connection.execute(statement))

    async def installed_apps(self) -> dict[int, str]:
        """Client id -> SHA-256 of its app, of all that ever joined."""
        async with self._reading() as connection:
            rows = await connection.execute(select(ClientRow.id, ClientRow.app_sha256))
            return {row.id: row.app_sha256 for row in rows}

    # --- runs -----------------------------------------------------------------------------------

    async def add_run(self, **columns: Any) -> None:
        """Insert a run; `columns` as in `RunRow`."""
        statement = insert(RunRow).values(status=RunStatus.WAITING.value, **columns)
        await self._write(lambda connection: connection.execute(statement))

    async def run(self, run: str) -> RunRow | None:
        """One run."""
        rows = await self._runs(RunRow.run == run)
        return rows[0] if rows else None

    async def next_waiting(self) -> RunRow | None:
        """The run that was submitted first of those that wait."""
        rows = await self._runs(RunRow.status == RunStatus.WAITING.value)
        return rows[0] if rows else None

    async def count_waiting(self) -> int:
        """How many runs wait."""
        statement = select(func.count()).where(RunRow.status == RunStatus.WAITING.value)
        async with self._reading() as connection:
            return int((await connection.execute(statement)).scalar_one())

    async def _runs(self, condition: Any) -> list[RunRow]:
        columns = RunRow.__table__.columns
        statement = select(*columns).where(condition).order_by(RunRow.number)
        async with self._reading() as connection:
            rows = await connection.execute(statement)
            return [RunRow(**row) for row in rows.mappings()]

    async def start_run(self, run: str) -> bool:
        """From waiting to running; False when the run no longer waits."""
        statement = (
            update(RunRow)
            .where(RunRow.run == run, RunRow.status == RunStatus.WAITING.value)
            .values(status=RunStatus.RUNNING.value)
        )
        return (await self._write(lambda connection: connection.execute(statement))).rowcount == 1

    async def end_run(
        self,
        run: str,
        status: RunStatus,
        reason: str,
        *,
        seconds: float,
        time: datetime,
        model: ModelRef | None = None,
        before: tuple[RunStatus, ...] = (RunStatus.WAITING, RunStatus.RUNNING),
    ) -> bool:
        """From one of `before` to a final status, with the event that says so; False otherwise."""
        values: dict[str, Any] = {"status": status.value, "reason": reason}
        if model is not None:
            values |= {"model_sha256": model.sha256, "model_size": model.size}
        known = [status.value for status in before]
        statement = update(RunRow).where(RunRow.run == run, RunRow.status.in_(known))
        last = select(func.coalesce(func.max(EventRow.seq), 0)).where(EventRow.run == run)

        async def work(connection: AsyncConnection) -> bool:
            if (await connection.execute(statement.values(**values))).rowcount != 1:
                return False
            seq = (await connection.execute(last)).scalar_one() + 1
            ended = stamp(seq, seconds, time, RunEnded(status=status, reason=reason))
            await connection.execute(insert(EventRow).values(_event_row(run, ended)))
            return True

        return await self._write(work)

    async def interrupt_runs(self, reason: str, time: datetime) -> list[str]:
        """Mark what waited or ran when the last process ended; the ids of those runs."""
        alive = (RunStatus.WAITING.value, RunStatus.RUNNING.value)
        rows = await self._runs(RunRow.status.in_(alive))
        for row in rows:
            await self.end_run(row.run, RunStatus.INTERRUPTED, reason, seconds=0.0, time=time)
        return [row.run for row in rows]

    # --- events ---------------------------------------------------------------------------------

    async def add_events(self, run: str, events: Sequence[Recorded]) -> None:
        """Append events, which bear their numbers already."""
        rows = [_event_row(run, item) for item in events]
        await self._write(lambda connection: connection.execute(insert(EventRow), rows))

    async def events(self, run: str, after: int) -> list[Recorded]:
        """Events of a run with a number above `after`, oldest first."""
        columns = (EventRow.seq, EventRow.seconds, EventRow.time, EventRow.event)
        statement = select(*columns).where(EventRow.run == run, EventRow.seq > after).order_by(EventRow.seq)
        async with self._reading() as connection:
            rows = await connection.execute(statement)
            return [Recorded.model_validate(dict(row)) for row in rows.mappings()]

    # --- exchanges ------------------------------------------------------------------------------

    async def add_exchange(
        self, run: str, exchange: int, *, stage: str, server_round: int, attempt: int, cohort: list[int]
    ) -> None:
        """Open an exchange at its first stage."""
        row = {"run": run, "exchange": exchange, "stage": stage, "server_round": server_round}
        statement = insert(ExchangeRow).values(**row, attempt=attempt, cohort=cohort)
        await self._write(lambda connection: connection.execute(statement))

    async def move_exchange(self, run: str, exchange: int, before: str, after: str) -> None:
        """Compare-and-swap of the stage; IllegalTransition where it is another than `before`."""
        statement = (
            update(ExchangeRow)
            .where(ExchangeRow.run == run, ExchangeRow.exchange == exchange, ExchangeRow.stage == before)
            .values(stage=after)
        )
        moved = await self._write(lambda connection: connection.execute(statement))
        if moved.rowcount != 1:
            raise IllegalTransition(before, after)

    async def cohort(self, run: str, exchange: int) -> list[int] | None:
        """Who was asked in an exchange; None where there was no such exchange."""
        statement = select(ExchangeRow.cohort).where(ExchangeRow.run == run, ExchangeRow.exchange == exchange)
        async with self._reading() as connection:
            return (await connection.execute(statement)).scalar_one_or_none()

    # --- receipts -------------------------------------------------------------------------------

    async def add_receipt(self, run: str, exchange: int, step: str, client: int, digest: bytes) -> None:
        """Keep what a client sent; ConflictingMessage where it sent something else before."""
        row = {"run": run, "exchange": exchange, "step": step, "client": client, "digest": digest}
        statement = upsert(ReceiptRow).values(**row)
        # Changes nothing where the row is there already, but returns it: one statement for both cases.
        statement = statement.on_conflict_do_update(
            index_elements=["run", "exchange", "step", "client"], set_={"digest": ReceiptRow.digest}
        )
        returning = statement.returning(ReceiptRow.digest)

        async def work(connection: AsyncConnection) -> bytes:
            return bytes((await connection.execute(returning)).scalar_one())

        if await self._write(work) != digest:
            raise ConflictingMessage("this step was answered before with other content")

    # --- transcript -----------------------------------------------------------------------------

    async def open_record(self, record: ExchangeRecord, outcome: Outcome) -> None:
        """Keep the record of an exchange whose survivors are about to be named, so that they may sign it."""
        statement = insert(RecordRow).values(
            run=record.task["run"],
            exchange=record.task["exchange"],
            complete_hash=record_hash(outcome, complete=True),
            unfinished_hash=record_hash(outcome, complete=False),
            record=record.model_dump(mode="json"),
            signatures={},
        )
        await self._write(lambda connection: connection.execute(statement))

    async def complete_record(self, outcome: Outcome, signatures: Mapping[int, bytes]) -> None:
        """Give a record its place with a quorum of signatures, before these are shown to anybody."""
        name = record_hash(outcome, complete=True)
        texts = {str(client): base64.b64encode(signature).decode() for client, signature in signatures.items()}
        statement = update(RecordRow).where(RecordRow.complete_hash == name).values(hash=name, signatures=texts)
        await self._write(lambda connection: connection.execute(statement))

    async def last_record(self) -> str:
        """The hash of the record that the next exchange comes after; "" where there is none.

        What is still open will never be complete, since no client was shown its signatures: it becomes unfinished.
        """
        close = update(RecordRow).where(RecordRow.hash == "").values(hash=RecordRow.unfinished_hash)
        last = select(RecordRow.hash).order_by(RecordRow.number.desc()).limit(1)

        async def work(connection: AsyncConnection) -> str:
            await connection.execute(close)
            return (await connection.execute(last)).scalar_one_or_none() or ""

        return await self._write(work)

    async def records_after(self, known: str) -> TranscriptOut | None:
        """The records after the one with this hash, "" for all, as many as one answer holds; None for no such hash."""
        place = select(RecordRow.number).where(RecordRow.hash == known)
        following = select(*RecordRow.__table__.columns).order_by(RecordRow.number).limit(_PAGE + 1)
        async with self._reading() as connection:
            number = (await connection.execute(place)).scalar_one_or_none() if known else 0
            if number is None:
                return None
            after = following.where(RecordRow.number > number, RecordRow.hash != "")
            rows = (await connection.execute(after)).mappings().all()
        return TranscriptOut(records=[_signed_record(row) for row in rows[:_PAGE]], more=len(rows) > _PAGE)

    # --- transactions ---------------------------------------------------------------------------

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run `work` in a transaction that others may share; durable on return, undone where it raises."""
        entry = _Write(work, asyncio.get_running_loop().create_future())
        self._pending.append(entry)
        if self._committer is None or self._committer.done():
            # A task of its own: a caller that is cancelled must not take the others' commit with it.
            self._committer = asyncio.create_task(self._commit_pending())
        result: T = await entry.outcome
        return result

    async def _commit_pending(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            if not await self._commit(batch):
                for entry in batch:
                    await self._commit([entry])

    async def _commit(self, batch: list[_Write]) -> bool:
        """One transaction, and its outcomes told; False where one of several writes failed, and nothing is told."""
        wanted = [entry for entry in batch if not entry.outcome.done()]
        try:
            async with self._engine.begin() as connection:
                values = [await entry.work(connection) for entry in wanted]
        except Exception as error:
            if len(wanted) > 1:
                return False
            for entry in wanted:
                entry.settle(error=_explained(error))
            return True
        for entry, value in zip(wanted, values, strict=True):
            entry.settle(value)
        return True

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        async with self._reader.begin() as connection:
            yield connection


@dataclass(frozen=True, slots=True)
class _Write:
    """One caller's writes, and where it waits for what became of them."""

    work: Callable[[AsyncConnection], Awaitable[Any]]
    outcome: asyncio.Future[Any]

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        """Tell the caller, unless it went away."""
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(value)


def _make_tables(connection: Connection, path: Path) -> None:
    """Fill an empty database; refuse one whose tables another version of this program made."""
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if version == SCHEMA_VERSION:
        return
    if version or inspect(connection).get_table_names():
        made = f"has schema version {version}" if version else "does not say which schema version it has"
        raise ConfigurationError(
            f"the server's database {path} {made}, and this fedcore reads version {SCHEMA_VERSION}: start the fedcore "
            "that made it, or name another folder with --data-dir, where the server begins without the earlier runs"
        )
    Base.metadata.create_all(connection)
    connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _explained(error: Exception) -> Exception:
    if isinstance(error, OperationalError) and _is_full(error):
        return StorageFull("the disk that holds the server's database is full")
    return error


def _prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # The driver's own transactions begin too late and too weakly; `_begin` starts them.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN DEFERRED" if read_only else "BEGIN IMMEDIATE")


def _is_full(error: OperationalError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_FULL or "is full" in str(error.orig)


def _signed_record(row: RowMapping) -> SignedRecord:
    complete = row["hash"] == row["complete_hash"]
    return SignedRecord(record=row["record"], complete=complete, signatures=row["signatures"])


def _event_row(run: str, item: Recorded) -> dict[str, Any]:
    event = item.event.model_dump(mode="json")
    return {"run": run, "seq": item.seq, "seconds": item.seconds, "time": item.time.isoformat(), "event": event}
