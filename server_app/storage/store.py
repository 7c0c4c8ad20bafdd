"""The store: clients, runs, exchanges, receipts, events, journals, the transcript, leases and sessions.

In SQLite, or in PostgreSQL that several servers share. `Store` is the one entry point; its base classes hold a few
tables each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fedcore.errors import StorageUnavailable
from server_app.storage.database import Database, Lease
from server_app.storage.engines import make_engine
from server_app.storage.exchange_tables import ExchangeJournal, ExchangeTables
from server_app.storage.leases import LeaseTables
from server_app.storage.run_tables import JournalTables, RunTables
from server_app.storage.schema import make_tables
from server_app.storage.session_tables import SessionTables
from server_app.storage.tables import SCHEMA_VERSION, ClientRow, RosterRow
from server_app.storage.transcript_tables import TranscriptTables

__all__ = ["SCHEMA_VERSION", "ExchangeJournal", "Lease", "Store"]


class Store(RunTables, ExchangeTables, JournalTables, TranscriptTables, LeaseTables, SessionTables):
    """The database; every method is one transaction.

    Raises StorageFull on a full disk, StorageUnavailable if the database is locked, gone or read-only,
    StorageDamaged if it cannot be read, and LeaseLost if another server leads (`fence`).
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    async def open(cls, database: Path | str) -> Self:
        """Open or create the SQLite file, or open the PostgreSQL database at a URL; an empty one is given its tables.

        Raises ConfigurationError for one of another version or that is damaged, StorageUnavailable.
        """
        engine = make_engine(database)
        name = str(database) if isinstance(database, Path) else engine.url.render_as_string(hide_password=True)
        store = cls(Database(engine))
        try:
            await store.database.write(lambda connection: connection.run_sync(make_tables, name))
        except BaseException as error:
            await store.close()
            if isinstance(
                error, StorageUnavailable
            ):  # the person who starts a server may know the name of its database
                why = str(error.__cause__ or error).partition("\n")[0]
                raise StorageUnavailable(f"the server's database {name} cannot be used: {why}") from error
            raise
        return store

    async def close(self) -> None:
        """Begin nothing more, finish what is being read and written, then close all connections."""
        await self.database.close()

    async def ping(self) -> None:
        """Raise unless the database answers."""
        await self.database.value(select(1))

    async def check_room(self) -> None:
        """Raise StorageFull if the disk of PostgreSQL takes nothing more; SQLite's is that of the data folder.

        A full disk still takes a row that replaces another. So the rows of this query go through a file next to the
        database, which is removed as soon as they are counted.
        """
        if self.database.engine.dialect.name != "postgresql":
            return

        async def through_a_file(connection: AsyncConnection) -> None:
            await connection.execute(text("SET LOCAL work_mem = '64kB'"))
            await connection.execute(text("SET LOCAL temp_tablespaces = ''"))
            await connection.execute(text("SELECT count(*) FROM generate_series(1, 30000)"))

        await self.database.read(through_a_file)

    async def remember_client(self, client: int, app_sha256: str, version: str) -> None:
        """Keep which app a client has installed, and what it said of its version."""
        values = {"app_sha256": app_sha256, "version": version}
        statement = self.database.upsert(ClientRow).values(id=client, **values)
        await self.database.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))

    async def joined_clients(self) -> list[ClientRow]:
        """What each client said that ever joined, when it last did."""
        return [ClientRow(**row) for row in await self.database.rows(select(*ClientRow.__table__.columns))]

    async def add_roster(self, version: int, text: str) -> None:
        """Keep a version of the roster; one that is there stays as it is."""
        statement = self.database.upsert(RosterRow).values(version=version, text=text)
        await self.database.execute(statement.on_conflict_do_nothing(index_elements=["version"]))

    async def rosters_after(self, version: int) -> dict[int, str]:
        """The rosters of later versions: version -> text, in order."""
        statement = select(RosterRow.version, RosterRow.text).where(RosterRow.version > version)
        rows = await self.database.rows(statement.order_by(RosterRow.version))
        return {row.version: row.text for row in rows}
