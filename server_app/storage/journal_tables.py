"""The journal of a run: what its ServerApp asked for, step by step, and what it was answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fedcore.errors import ConflictingMessage
from server_app.storage.database import Database
from server_app.storage.tables import ClosingRow, ExchangeRow, ReceiptRow, StepRow


class JournalTables:
    """What `Store` knows of the journal."""

    database: Database

    async def open_step(self, run: str, number: int, digest: bytes, request: Mapping[str, Any]) -> None:
        """Keep the request that is the run's `number`th; ConflictingMessage where another one is kept."""
        row = {"run": run, "number": number, "digest": digest, "request": dict(request)}
        statement = self.database.upsert(StepRow).values(**row)
        returning = statement.on_conflict_do_update(
            index_elements=["run", "number"], set_={"digest": StepRow.digest}
        ).returning(StepRow.digest)

        async def work(connection: AsyncConnection) -> bytes:
            return bytes((await connection.execute(returning)).scalar_one())

        if await self.database.write(work) != digest:
            raise ConflictingMessage(f"step {number} of run {run} is another one in its journal")

    async def answer_step(self, run: str, number: int, answer: Mapping[str, Any]) -> None:
        """Keep the answer to a step."""
        mine = (StepRow.run == run, StepRow.number == number)
        await self.database.execute(update(StepRow).where(*mine).values(answer=dict(answer)))

    async def steps(self, run: str) -> list[StepRow]:
        """The journal of a run, in order."""
        statement = select(*StepRow.__table__.columns).where(StepRow.run == run).order_by(StepRow.number)
        return [StepRow(**row) for row in await self.database.rows(statement)]

    async def drop_steps_from(self, run: str, number: int) -> None:
        """Remove this step and all later ones, and what clients sent in the exchanges that they led to.

        How these ended stays, as of exchanges of no step: their sums may be known, so they have cost what they cost.
        """
        later = (ExchangeRow.run == run, ExchangeRow.step >= number)
        exchanges = select(ExchangeRow.exchange).where(*later)

        async def work(connection: AsyncConnection) -> None:
            for table in (ReceiptRow, ClosingRow):
                theirs = (table.run == run, table.exchange.in_(exchanges))
                await connection.execute(delete(table).where(*theirs))
            await connection.execute(update(ExchangeRow).where(*later).values(step=0))
            await connection.execute(delete(StepRow).where(StepRow.run == run, StepRow.number >= number))

        await self.database.write(work)
