"""Runs and their events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fedcore.errors import ConflictingMessage
from fedcore.wire.base import moment
from fedcore.wire.events import Recorded, RunEnded, stamp
from fedcore.wire.operator import RunStatus
from fedcore.wire.tasks import ModelRef
from server_app.storage.database import Database
from server_app.storage.tables import ClosingRow, EventRow, ExchangeRow, ReceiptRow, RunRow, StepRow

_FINAL = tuple(status.value for status in RunStatus if status.final)


_OPEN: Final = (RunStatus.WAITING.value, RunStatus.RUNNING.value)


class RunTables:
    """What `Store` knows of runs."""

    database: Database

    async def add_run(self, **columns: Any) -> None:
        """Insert a run that waits; `columns` as in `RunRow`."""
        await self.database.execute(insert(RunRow).values(status=RunStatus.WAITING.value, **columns))

    async def run(self, run: str) -> RunRow | None:
        """One run."""
        rows = await self._runs(RunRow.run == run)
        return rows[0] if rows else None

    async def next_waiting(self) -> RunRow | None:
        """The run that was submitted first of those that wait."""
        rows = await self._runs(RunRow.status == RunStatus.WAITING.value)
        return rows[0] if rows else None

    async def running(self) -> RunRow | None:
        """The run that is led, or was when the last leader ended."""
        rows = await self._runs(RunRow.status == RunStatus.RUNNING.value)
        return rows[0] if rows else None

    async def count_waiting(self) -> int:
        """How many runs wait."""
        statement = select(func.count()).where(RunRow.status == RunStatus.WAITING.value)
        return int(await self.database.value(statement))

    async def open_apps(self) -> dict[str, str]:
        """SHA-256 of the app of every run that waits or is led -> one such run."""
        return {row.app_sha256: row.run for row in await self._runs(RunRow.status.in_(_OPEN))}

    async def list_runs(self, limit: int, before: str = "", status: RunStatus | None = None) -> list[RunRow]:
        """At most `limit` runs, newest first: those submitted before the run `before`, of one status if it is given.

        None if there is no run `before`.
        """
        statement = select(*RunRow.__table__.columns).order_by(RunRow.number.desc()).limit(limit)
        if before:
            submitted = select(RunRow.number).where(RunRow.run == before).scalar_subquery()
            statement = statement.where(RunRow.number < submitted)
        if status is not None:
            statement = statement.where(RunRow.status == status.value)
        return [RunRow(**row) for row in await self.database.rows(statement)]

    async def _runs(self, condition: Any) -> list[RunRow]:
        statement = select(*RunRow.__table__.columns).where(condition).order_by(RunRow.number)
        return [RunRow(**row) for row in await self.database.rows(statement)]

    async def update_run(self, run: str, **columns: Any) -> None:
        """Change columns of a run, but its status."""
        await self.database.execute(update(RunRow).where(RunRow.run == run).values(**columns))

    async def start_run(self, run: str, *, started_at: float | None = None) -> bool:
        """From waiting to running; False if the run no longer waits.

        run
            Its id.
        started_at
            Seconds since 1970.
        """
        waits = update(RunRow).where(RunRow.run == run, RunRow.status == RunStatus.WAITING.value)
        statement = waits.values(status=RunStatus.RUNNING.value, started_at=started_at)
        return (await self.database.execute(statement)).rowcount == 1

    async def resume_run(self, run: str, before: tuple[RunStatus, ...]) -> bool:
        """From one of the final statuses `before` to waiting; False otherwise."""
        known = [status.value for status in before]
        statement = update(RunRow).where(RunRow.run == run, RunRow.status.in_(known))
        statement = statement.values(status=RunStatus.WAITING.value, reason="", ended_at=None, deaths=0)
        return (await self.database.execute(statement)).rowcount == 1

    async def count_death(self, run: str) -> int:
        """A server was killed while it led a run: how often that was, since the run came further last."""
        tables = (StepRow, ExchangeRow, ClosingRow, ReceiptRow)
        counts = [select(func.count()).select_from(table).where(table.run == run) for table in tables]
        answered = select(func.count(StepRow.answer)).where(StepRow.run == run)
        before = select(RunRow.deaths, RunRow.came_to).where(RunRow.run == run)

        async def work(connection: AsyncConnection) -> int:
            came_to = sum([(await connection.execute(count)).scalar_one() for count in [*counts, answered]])
            deaths, last = (await connection.execute(before)).one()
            deaths = deaths + 1 if deaths and came_to == last else 1
            changed = {"deaths": deaths, "came_to": came_to}
            await connection.execute(update(RunRow).where(RunRow.run == run).values(**changed))
            return int(deaths)

        return await self.database.write(work)

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
        values: dict[str, Any] = {"status": status.value, "reason": reason, "ended_at": time.timestamp()}
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

        return await self.database.write(work)

    async def interrupt_runs(self, reason: str, time: datetime) -> list[str]:
        """Mark what waited or ran when the last process ended; the ids of those runs."""
        alive = (RunStatus.WAITING.value, RunStatus.RUNNING.value)
        rows = await self._runs(RunRow.status.in_(alive))
        for row in rows:
            await self.end_run(row.run, RunStatus.INTERRUPTED, reason, seconds=0.0, time=time)
        return [row.run for row in rows]

    async def forget_run(self, run: str) -> bool:
        """Remove all of a run that has ended but its records in the transcript; False for one that has not."""
        ended = select(RunRow.number).where(RunRow.run == run, RunRow.status.in_(_FINAL))

        async def work(connection: AsyncConnection) -> bool:
            if (await connection.execute(ended)).first() is None:
                return False
            for table in (EventRow, ReceiptRow, ClosingRow, StepRow, ExchangeRow, RunRow):
                await connection.execute(delete(table).where(table.run == run))
            return True

        return await self.database.write(work)

    async def add_events(self, run: str, events: Sequence[Recorded]) -> None:
        """Append events, which bear their numbers already; those that are there stay as they are."""
        rows = [_event_row(run, item) for item in events]
        statement = self.database.upsert(EventRow).on_conflict_do_nothing(index_elements=["run", "seq"])
        await self.database.write(lambda connection: connection.execute(statement, rows))

    async def events(self, run: str, after: int, limit: int | None = None) -> list[Recorded]:
        """Events of a run with a number above `after`, oldest first; at most `limit` of them."""
        columns = (EventRow.seq, EventRow.seconds, EventRow.time, EventRow.event)
        statement = (
            select(*columns).where(EventRow.run == run, EventRow.seq > after).order_by(EventRow.seq).limit(limit)
        )
        return [Recorded.model_validate(dict(row)) for row in await self.database.rows(statement)]


def _event_row(run: str, item: Recorded) -> dict[str, Any]:
    event = item.event.model_dump(mode="json")
    return {"run": run, "seq": item.seq, "seconds": item.seconds, "time": moment(item.time), "event": event}


class JournalTables:
    """What `Store` knows of the journal."""

    database: Database

    async def open_step(self, run: str, number: int, digest: bytes, request: Mapping[str, Any]) -> None:
        """Keep the request that is the run's `number`th; ConflictingMessage if another one is kept."""
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
