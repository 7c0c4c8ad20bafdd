"""Tables of login sessions and read-only links. Of secrets only hashes are stored."""

from __future__ import annotations

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from server_app.storage.database import Database
from server_app.storage.tables import LinkRow, SessionRow


class SessionTables:
    """What `Store` knows of sessions and links; times are seconds since 1970."""

    database: Database

    async def add_session(self, row: SessionRow, *, most: int) -> None:
        """Store a session, and delete those that have expired.

        row
            The session.
        most
            Sessions that one holder may have; the oldest beyond that are deleted.
        """
        old = (
            select(SessionRow.digest)
            .where(SessionRow.holder == row.holder)
            .order_by(SessionRow.created.desc(), SessionRow.digest)
            .offset(most - 1)
        )
        values = {column.name: getattr(row, column.name) for column in SessionRow.__table__.columns}

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete(SessionRow).where(SessionRow.expires <= row.created))
            surplus = (await connection.execute(old)).scalars().all()
            if surplus:
                await connection.execute(delete(SessionRow).where(SessionRow.digest.in_(surplus)))
            await connection.execute(insert(SessionRow).values(**values))

        await self.database.write(work)

    async def session(self, digest: bytes) -> SessionRow | None:
        """The session of a cookie with this SHA-256."""
        statement = select(*SessionRow.__table__.columns).where(SessionRow.digest == digest)
        rows = await self.database.rows(statement)
        return SessionRow(**rows[0]) if rows else None

    async def end_session(self, digest: bytes) -> None:
        """Forget a session; one that is not there is forgotten already."""
        await self.database.execute(delete(SessionRow).where(SessionRow.digest == digest))

    async def add_link(self, row: LinkRow) -> None:
        """Keep a link; those that have run out go."""
        values = {column.name: getattr(row, column.name) for column in LinkRow.__table__.columns}

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete(LinkRow).where(LinkRow.expires <= row.created))
            await connection.execute(insert(LinkRow).values(**values))

        await self.database.write(work)

    async def links(self) -> list[LinkRow]:
        """All links, the newest first."""
        statement = select(*LinkRow.__table__.columns).order_by(LinkRow.created.desc(), LinkRow.id)
        return [LinkRow(**row) for row in await self.database.rows(statement)]

    async def link_of(self, digest: bytes) -> LinkRow | None:
        """The link whose token has this SHA-256."""
        statement = select(*LinkRow.__table__.columns).where(LinkRow.digest == digest)
        rows = await self.database.rows(statement)
        return LinkRow(**rows[0]) if rows else None

    async def drop_link(self, link: str) -> bool:
        """Forget a link and all sessions that came by it; False if there is no such link."""

        async def work(connection: AsyncConnection) -> bool:
            await connection.execute(delete(SessionRow).where(SessionRow.holder == link))
            return (await connection.execute(delete(LinkRow).where(LinkRow.id == link))).rowcount == 1

        return await self.database.write(work)
