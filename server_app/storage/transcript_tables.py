"""The transcript: records of exchanges, chained by their hashes and signed by their survivors."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import RowMapping, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fedcore.federation.transcript import ExchangeRecord, SignedRecord, TranscriptOut, next_head, record_hash
from fedcore.secagg import Outcome
from server_app.storage.database import Change, Database
from server_app.storage.tables import RecordRow

_PAGE: Final = 32
"""Most records in one answer; those of cohorts of 10,000 have a megabyte each."""
_LAST_SUMS: Final = 4
"""Of a run: its last test and training, and what an app may ask in between."""


class TranscriptTables:
    """What `Store` knows of the transcript."""

    database: Database

    async def last_record(self, *, led: Collection[tuple[str, int]] = ()) -> str:
        """The head of the chain, at which the next exchange is opened; "" if there is none.

        led
            Run and number of the exchanges that are led now. Every other open record becomes unfinished: it will never
            be complete, since no client has received its signatures.
        """
        left = select(RecordRow.number, RecordRow.run, RecordRow.exchange, RecordRow.unfinished_hash)
        left = left.where(RecordRow.place.is_(None)).order_by(RecordRow.number)

        async def work(connection: AsyncConnection) -> str:
            for row in (await connection.execute(left)).all():
                if (row.run, row.exchange) not in led:
                    await _append(connection, row.number, row.unfinished_hash)
            return (await _last(connection))[1]

        return await self.database.write(work)

    async def has_head(self, head: str) -> bool:
        """Whether the chain had this head once, or has it."""
        statement = select(RecordRow.place).where(RecordRow.head == head).limit(1)
        return await self.database.value(statement) is not None

    async def has_signed(self, signed: Mapping[str, str]) -> bool:
        """Whether all records are here, open or as one of the two that each can become; `signed` is as in `JoinIn`."""
        names = {name for pair in signed.items() for name in pair if name}
        columns = (RecordRow.complete_hash, RecordRow.hash)
        statement = select(*columns).where(or_(RecordRow.hash.in_(names), RecordRow.place.is_(None)))
        hashes = {row.complete_hash: row.hash for row in await self.database.rows(statement)}
        return all(hashes.get(complete) in ("", complete, unfinished) for complete, unfinished in signed.items())

    async def records_after(self, known: str) -> TranscriptOut | None:
        """The records after those that the head `known` stands for, "" for all, as many as one answer holds.

        None if no record has left this head.
        """
        position = select(RecordRow.place).where(RecordRow.head == known)
        following = select(*RecordRow.__table__.columns).order_by(RecordRow.place).limit(_PAGE + 1)

        async def work(connection: AsyncConnection) -> Sequence[RowMapping] | None:
            number = (await connection.execute(position)).scalar_one_or_none() if known else 0
            if number is None:
                return None
            return (await connection.execute(following.where(RecordRow.place > number))).mappings().all()

        rows = await self.database.read(work)
        if rows is None:
            return None
        return TranscriptOut(records=[_signed_record(row) for row in rows[:_PAGE]], more=len(rows) > _PAGE)

    async def sums_of_run(self, run: str) -> list[dict[str, Any]]:
        """The tasks of a run's last sums that enough clients signed, newest first, as their records have them."""
        statement = select(RecordRow.record).where(RecordRow.run == run, RecordRow.hash == RecordRow.complete_hash)
        rows = await self.database.rows(statement.order_by(RecordRow.number.desc()).limit(_LAST_SUMS))
        return [row.record["task"] for row in rows]


def record_opened(record: ExchangeRecord, outcome: Outcome) -> Change:
    """Keeps the record of an exchange whose survivors are about to be named, so that they may sign it."""
    statement = insert(RecordRow).values(
        run=record.task["run"],
        exchange=record.task["exchange"],
        previous=record.task["previous"],
        complete_hash=record_hash(outcome, complete=True),
        unfinished_hash=record_hash(outcome, complete=False),
        record=record.model_dump(mode="json"),
        signatures={},
    )

    async def change(connection: AsyncConnection) -> None:
        await connection.execute(statement)

    return change


def record_completed(outcome: Outcome, signatures: Mapping[int, bytes]) -> Change:
    """Gives a record its place with a quorum of signatures, before these are shown to anybody."""
    name = record_hash(outcome, complete=True)
    texts = {str(client): base64.b64encode(signature).decode() for client, signature in signatures.items()}
    opened = select(RecordRow.number).where(RecordRow.complete_hash == name, RecordRow.place.is_(None))

    async def change(connection: AsyncConnection) -> None:
        await _append(connection, (await connection.execute(opened)).scalar_one(), name, signatures=texts)

    return change


async def _append(connection: AsyncConnection, number: int, name: str, **values: Any) -> None:
    """Append a record to the chain under this hash."""
    mine = RecordRow.number == number
    previous = (await connection.execute(select(RecordRow.previous).where(mine))).scalar_one()
    position, head = await _last(connection)
    values |= {"hash": name, "place": position + 1, "head": next_head(head, previous, name)}
    await connection.execute(update(RecordRow).where(mine).values(**values))


async def _last(connection: AsyncConnection) -> tuple[int, str]:
    """Place of the last record of the chain and the head after it."""
    last = select(RecordRow.place, RecordRow.head).where(RecordRow.place.is_not(None))
    row = (await connection.execute(last.order_by(RecordRow.place.desc()).limit(1))).first()
    return (row.place, row.head) if row is not None else (0, "")


def _signed_record(row: RowMapping) -> SignedRecord:
    complete = row["hash"] == row["complete_hash"]
    return SignedRecord(record=row["record"], complete=complete, signatures=row["signatures"])
