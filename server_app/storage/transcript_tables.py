"""The transcript: records of exchanges, chained by their hashes and signed by their survivors."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Executable, RowMapping, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fedcore.secagg import Outcome
from fedcore.transcript import ExchangeRecord, SignedRecord, TranscriptOut, record_hash
from server_app.storage.database import Database
from server_app.storage.tables import RecordRow

_PAGE: Final = 32
"""Most records in one answer; those of cohorts of 10,000 have a megabyte each."""


class TranscriptTables:
    """What `Store` knows of the transcript."""

    _database: Database

    async def last_record(self) -> str:
        """The hash of the record that the next exchange comes after; "" where there is none.

        What is still open will never be complete, since no client was shown its signatures: it becomes unfinished.
        """
        close = update(RecordRow).where(RecordRow.hash == "").values(hash=RecordRow.unfinished_hash)
        last = select(RecordRow.hash).order_by(RecordRow.number.desc()).limit(1)

        async def work(connection: AsyncConnection) -> str:
            await connection.execute(close)
            return (await connection.execute(last)).scalar_one_or_none() or ""

        return await self._database.write(work)

    async def records_after(self, known: str) -> TranscriptOut | None:
        """The records after the one with this hash, "" for all, as many as one answer holds; None for no such hash."""
        place = select(RecordRow.number).where(RecordRow.hash == known)
        following = select(*RecordRow.__table__.columns).order_by(RecordRow.number).limit(_PAGE + 1)

        async def work(connection: AsyncConnection) -> Sequence[RowMapping] | None:
            number = (await connection.execute(place)).scalar_one_or_none() if known else 0
            if number is None:
                return None
            after = following.where(RecordRow.number > number, RecordRow.hash != "")
            return (await connection.execute(after)).mappings().all()

        rows = await self._database.read(work)
        if rows is None:
            return None
        return TranscriptOut(records=[_signed_record(row) for row in rows[:_PAGE]], more=len(rows) > _PAGE)


def record_opened(record: ExchangeRecord, outcome: Outcome) -> Executable:
    """Keeps the record of an exchange whose survivors are about to be named, so that they may sign it."""
    return insert(RecordRow).values(
        run=record.task["run"],
        exchange=record.task["exchange"],
        complete_hash=record_hash(outcome, complete=True),
        unfinished_hash=record_hash(outcome, complete=False),
        record=record.model_dump(mode="json"),
        signatures={},
    )


def record_completed(outcome: Outcome, signatures: Mapping[int, bytes]) -> Executable:
    """Gives a record its place with a quorum of signatures, before these are shown to anybody."""
    name = record_hash(outcome, complete=True)
    texts = {str(client): base64.b64encode(signature).decode() for client, signature in signatures.items()}
    return update(RecordRow).where(RecordRow.complete_hash == name).values(hash=name, signatures=texts)


def _signed_record(row: RowMapping) -> SignedRecord:
    complete = row["hash"] == row["complete_hash"]
    return SignedRecord(record=row["record"], complete=complete, signatures=row["signatures"])
