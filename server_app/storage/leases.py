"""Leases: which server of a federation leads, until when, and proof that it still does."""

from __future__ import annotations

from sqlalchemy import or_, select, update

from fedcore.errors import LeaseLost
from server_app.storage.database import Database, Lease
from server_app.storage.engines import now
from server_app.storage.tables import LeaseRow


class LeaseTables:
    """What `Store` knows of leases; all times are the database's."""

    database: Database

    async def take_lease(self, name: str, *, holder: str, url: str, seconds: float) -> Lease | None:
        """Take a lease that is free, run out or this holder's own, for `seconds`; None if another has it.

        Of a holder one process lives at a time. Who held the lease before can write nothing more (`fence`).
        """
        values = {"holder": holder, "url": url, "until": now() + seconds}
        statement = self.database.upsert(LeaseRow).values(name=name, generation=1, **values)
        free = or_(LeaseRow.until < now(), LeaseRow.holder == holder)
        statement = statement.on_conflict_do_update(
            index_elements=["name"], set_={**values, "generation": LeaseRow.generation + 1}, where=free
        )
        taking = statement.returning(LeaseRow.generation)
        generation = await self.database.write(lambda connection: connection.scalar(taking), fenced=False)
        return None if generation is None else Lease(name=name, holder=holder, generation=generation)

    async def renew_lease(self, lease: Lease, seconds: float) -> None:
        """Hold it for `seconds` from now on; LeaseLost if another took it."""
        await self._extend(lease, seconds)

    async def give_lease(self, lease: Lease) -> None:
        """Let anybody take it at once; LeaseLost if another has done so."""
        await self._extend(lease, -1.0)

    async def give_all(self, holder: str) -> None:
        """Let anybody take at once what this holder has."""
        mine = update(LeaseRow).where(LeaseRow.holder == holder, LeaseRow.until > now())
        await self.database.execute(mine.values(until=now() - 1.0), fenced=False)

    async def _extend(self, lease: Lease, seconds: float) -> None:
        mine = (LeaseRow.name == lease.name, LeaseRow.generation == lease.generation)
        statement = update(LeaseRow).where(*mine).values(until=now() + seconds)
        if (await self.database.execute(statement, fenced=False)).rowcount != 1:
            raise LeaseLost("another server of this federation leads now")

    async def lease(self, name: str) -> tuple[LeaseRow, float] | None:
        """Who took a lease last, and for how many more seconds it holds (negative: it ran out); None before that."""
        statement = select(*LeaseRow.__table__.columns, (LeaseRow.until - now()).label("left"))
        rows = await self.database.rows(statement.where(LeaseRow.name == name))
        if not rows:
            return None
        values = dict(rows[0])
        left = values.pop("left")
        return LeaseRow(**values), left

    async def time(self) -> float:
        """Seconds since 1970 by the database's clock."""
        moment: float = await self.database.value(select(now()))
        return moment

    def fence(self, lease: Lease | None) -> None:
        """From now on every write raises LeaseLost once this lease was taken by another; None ends that."""
        self.database.fence(lease)
