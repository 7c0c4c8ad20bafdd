"""Exchanges: their stages and how these were closed, what clients sent, and how they ended.

Every write may be repeated after StorageUnavailable: if it was done already, it changes nothing and does not raise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Executable, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fedcore.errors import ConflictingMessage, IllegalTransition
from server_app.storage.database import Change, Database
from server_app.storage.engines import now
from server_app.storage.tables import ClosingRow, ExchangeRow, ReceiptRow


@dataclass(frozen=True, slots=True)
class ExchangeJournal:
    """What an exchange is rebuilt from: its closings by number, and the receipts in the order of acceptance."""

    closings: Sequence[ClosingRow]
    receipts: Sequence[ReceiptRow]


class ExchangeTables:
    """What `Store` knows of exchanges."""

    database: Database

    async def add_exchange(
        self,
        run: str,
        exchange: int,
        *,
        stage: str,
        server_round: int,
        attempt: int,
        cohort: list[int],
        step: int = 0,
        task: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        opened_at: float | None = None,
    ) -> None:
        """Open an exchange at its first stage; ConflictingMessage if it was opened with another task before."""
        row = {"run": run, "exchange": exchange, "stage": stage, "server_round": server_round, "attempt": attempt}
        row |= {"cohort": cohort, "step": step, "task": task, "extra": extra, "opened_at": opened_at}
        statement = self.database.upsert(ExchangeRow).values(**row)
        statement = statement.on_conflict_do_nothing(index_elements=["run", "exchange"])
        columns = (ExchangeRow.stage, ExchangeRow.step, ExchangeRow.cohort, ExchangeRow.task)
        stored = select(*columns).where(ExchangeRow.run == run, ExchangeRow.exchange == exchange)

        async def work(connection: AsyncConnection) -> bool:
            if (await connection.execute(statement)).rowcount == 1:
                return True
            return tuple((await connection.execute(stored)).one()) == (stage, step, cohort, task)

        if not await self.database.write(work):
            raise ConflictingMessage(f"exchange {exchange} of run {run} was opened before")

    async def close_stage(
        self,
        run: str,
        exchange: int,
        before: str,
        after: str,
        closure: Mapping[str, Any],
        *,
        also: Sequence[Change] = (),
    ) -> None:
        """Close one stage of an exchange and begin the next.

        before
            The stage that ends.
        after
            The stage that begins.
        closure
            A `server_app.exchanges.outcome.StageClosure`, as JSON.
        also
            Changes for the same transaction, made only if this is done for the first time.

        Raises:
            IllegalTransition: the exchange is in another stage.
        """
        mine = (ClosingRow.run == run, ClosingRow.exchange == exchange)
        number = select(func.coalesce(func.max(ClosingRow.number), 0) + 1).where(*mine).scalar_subquery()
        closing = {"run": run, "exchange": exchange, "number": number, "stage": before, "gone": dict(closure)}
        statement = insert(ClosingRow).values(**closing, closed_at=now())
        last = select(ClosingRow.stage, ClosingRow.gone).where(*mine).order_by(ClosingRow.number.desc()).limit(1)

        async def work(connection: AsyncConnection) -> bool:
            if (await connection.execute(_swapped(run, exchange, before, {"stage": after}))).rowcount == 1:
                await connection.execute(statement)
                for change in also:
                    await change(connection)
                return True
            stage = await _stage(connection, run, exchange)
            known = (await connection.execute(last)).first()
            return stage == after and known is not None and tuple(known) == (before, closure)

        if not await self.database.write(work):
            raise IllegalTransition(before, after)

    async def save_partial_sum(self, run: str, exchange: int, folded: Mapping[str, Any]) -> None:
        """Keep where the sum's last checkpoint is, and whose updates are in it."""
        mine = (ExchangeRow.run == run, ExchangeRow.exchange == exchange)
        await self.database.execute(update(ExchangeRow).where(*mine).values(folded=dict(folded)))

    async def end_exchange(self, run: str, exchange: int, before: str, after: str, result: Mapping[str, Any]) -> None:
        """From stage `before` to the end `after`, and how it ended; IllegalTransition from another stage.

        What clients sent is forgotten, but for its digests.
        """
        mine = (ReceiptRow.run == run, ReceiptRow.exchange == exchange)
        forget = update(ReceiptRow).where(*mine).values(body=b"")
        await self._swap(run, exchange, before, after, {"result": dict(result)}, also=forget)

    async def _swap(
        self,
        run: str,
        exchange: int,
        before: str,
        after: str,
        values: Mapping[str, Any],
        *,
        also: Executable | None = None,
    ) -> None:
        mine = (ExchangeRow.run == run, ExchangeRow.exchange == exchange)
        result = select(ExchangeRow.result).where(*mine)

        async def work(connection: AsyncConnection) -> bool:
            changed = await connection.execute(_swapped(run, exchange, before, {"stage": after, **values}))
            if changed.rowcount == 1:
                if also is not None:
                    await connection.execute(also)
                return True
            again = "result" in values and await _stage(connection, run, exchange) == after
            return again and (await connection.execute(result)).scalar_one() == values["result"]

        if not await self.database.write(work):
            raise IllegalTransition(before, after)

    async def exchange(self, run: str, exchange: int) -> ExchangeRow | None:
        """One exchange."""
        rows = await self._exchanges(ExchangeRow.run == run, ExchangeRow.exchange == exchange)
        return rows[0] if rows else None

    async def exchanges_of(self, run: str) -> list[ExchangeRow]:
        """All exchanges of a run, in order."""
        return await self._exchanges(ExchangeRow.run == run)

    async def _exchanges(self, *conditions: Any) -> list[ExchangeRow]:
        statement = select(*ExchangeRow.__table__.columns).where(*conditions).order_by(ExchangeRow.exchange)
        return [ExchangeRow(**row) for row in await self.database.rows(statement)]

    async def cohort(self, run: str, exchange: int) -> list[int] | None:
        """Who was asked in an exchange; None if there was no such exchange."""
        statement = select(ExchangeRow.cohort).where(ExchangeRow.run == run, ExchangeRow.exchange == exchange)
        cohort: list[int] | None = await self.database.value(statement)
        return cohort

    async def add_receipt(
        self, run: str, exchange: int, step: str, client: int, digest: bytes, body: bytes = b""
    ) -> None:
        """Keep what a client sent; ConflictingMessage if it sent something else before."""
        row = {"run": run, "exchange": exchange, "step": step, "client": client, "digest": digest, "body": body}
        row |= {"body_sha256": hashlib.sha256(body).digest()}

        async def work(connection: AsyncConnection) -> bytes:
            return bytes((await connection.execute(self._keep_receipt, row)).scalar_one())

        if await self.database.write(work) != digest:
            raise ConflictingMessage("this step was answered before with other content")

    @cached_property
    def _keep_receipt(self) -> Executable:
        """Made once: a round has five for each client, and to make one takes longer than to carry it out."""
        statement = self.database.upsert(ReceiptRow)
        # Changes nothing if the row is there already, but returns it: one statement for both cases.
        statement = statement.on_conflict_do_update(
            index_elements=["run", "exchange", "step", "client"], set_={"digest": ReceiptRow.digest}
        )
        return statement.returning(ReceiptRow.digest)

    async def history(self, run: str, exchange: int) -> ExchangeJournal:
        """All that an exchange is rebuilt from."""
        closings = select(*ClosingRow.__table__.columns).order_by(ClosingRow.number)
        closings = closings.where(ClosingRow.run == run, ClosingRow.exchange == exchange)
        receipts = select(*ReceiptRow.__table__.columns).order_by(ReceiptRow.seq)
        receipts = receipts.where(ReceiptRow.run == run, ReceiptRow.exchange == exchange)

        async def work(connection: AsyncConnection) -> ExchangeJournal:
            return ExchangeJournal(
                [ClosingRow(**row) for row in (await connection.execute(closings)).mappings()],
                [ReceiptRow(**row) for row in (await connection.execute(receipts)).mappings()],
            )

        return await self.database.read(work)


def _swapped(run: str, exchange: int, before: str, values: Mapping[str, Any]) -> Any:
    mine = (ExchangeRow.run == run, ExchangeRow.exchange == exchange, ExchangeRow.stage == before)
    return update(ExchangeRow).where(*mine).values(**values)


async def _stage(connection: AsyncConnection, run: str, exchange: int) -> str | None:
    statement = select(ExchangeRow.stage).where(ExchangeRow.run == run, ExchangeRow.exchange == exchange)
    stage: str | None = (await connection.execute(statement)).scalar_one_or_none()
    return stage
