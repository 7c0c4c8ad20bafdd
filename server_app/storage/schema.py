"""Schema versions of the database, and migrations."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select

from fedcore.errors import ConfigurationError
from server_app.storage import migrations
from server_app.storage.engines import make_engine, now
from server_app.storage.tables import SCHEMA_VERSION, Base, LeaseRow
from server_app.storage.trouble import explained

_ALEMBIC = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def revision_of(version: int) -> str:
    """The name of alembic's revision that makes the tables of a version; the first that it knows is version 2."""
    return f"{version - 1:04}"


def version_of(connection: Connection) -> int | None:
    """The version of the tables that are there; 0 for an empty database, None if nothing says which."""
    tables = set(inspect(connection).get_table_names())
    if _ALEMBIC.name in tables:
        revision = connection.execute(select(_ALEMBIC.c.version_num)).scalar_one_or_none()
        if revision is not None:
            return int(revision) + 1
    version = 0
    if connection.dialect.name == "sqlite":
        version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if version == 0 and tables - {_ALEMBIC.name}:
        return None
    return version


def make_tables(connection: Connection, name: str) -> None:
    """Fill an empty database.

    connection
        In a transaction.
    name
        Of the database, for people.

    Raises:
        ConfigurationError: the database has another version.
    """
    if connection.dialect.name == "postgresql":  # two servers may begin at the same time
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7203951)")
    version = version_of(connection)
    if version == SCHEMA_VERSION:
        return
    if version != 0:
        raise ConfigurationError(_refusal(name, version))
    Base.metadata.create_all(connection)
    _ALEMBIC.create(connection, checkfirst=True)
    connection.execute(insert(_ALEMBIC).values(version_num=revision_of(SCHEMA_VERSION)))
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def refuse_lost(database: Path, runs: Path) -> None:
    """Refuse to begin a federation in place of one that lost its SQLite file, or what was in it.

    database
        The file.
    runs
        The folder with the files of runs.

    Raises:
        ConfigurationError: the file has no byte, or it is missing while there are files of runs.
    """
    if database.is_file():
        lost, what, rest = database.stat().st_size == 0, "is empty (0 bytes)", database
    else:
        lost, what, rest = runs.is_dir() and any(runs.iterdir()), f"is missing, and {runs} has files of its runs", runs
    if lost:
        raise ConfigurationError(
            f"the server's database {database} {what}: put the newest backup back (docs/howto/operating.md). To begin "
            f"without the earlier runs, remove {rest}; clients that took part in them then refuse until their owners "
            "take the new transcript",
            check="database-lost",
        )


def _refusal(name: str, version: int | None) -> str:
    reads = f"and this fedcore reads version {SCHEMA_VERSION}"
    elsewhere = "or name another folder with --data-dir, where the server begins without the earlier runs"
    if version is None:
        return f"the server's database {name} does not say which schema version it has, {reads}: {elsewhere[3:]}"
    if 2 <= version < SCHEMA_VERSION:
        how = "stop the server, and run: fedcore server upgrade --federation DIR (it makes a copy first)"
        return f"the server's database {name} has schema version {version}, {reads}: {how}; {elsewhere}"
    how = "start the fedcore that made it"
    return f"the server's database {name} has schema version {version}, {reads}: {how}, {elsewhere}"


OLDEST: Final = 2
_FOLDER: Final = Path(migrations.__file__).parent


def upgrade(database: Path | str, to: int = SCHEMA_VERSION) -> list[str]:
    """Lead a database, an SQLite file or a PostgreSQL URL, to version `to`; lines that say what was done.

    All or nothing. No server may run over it. Raises ConfigurationError if there is no way, and what the database
    raises.
    """
    if not OLDEST <= to <= SCHEMA_VERSION:
        raise ConfigurationError(f"this fedcore knows versions {OLDEST} to {SCHEMA_VERSION} of the database, not {to}")
    if isinstance(database, Path) and not database.is_file():
        raise ConfigurationError(f"there is no database {database} yet; the server makes one when it starts")
    if isinstance(database, Path):
        refuse_lost(database, database.with_name("runs"))
    return asyncio.run(_upgrade(database, to))


async def _upgrade(database: Path | str, to: int) -> list[str]:
    engine = make_engine(database)
    try:
        async with engine.connect() as connection:
            version = await connection.run_sync(_known_version)
        if version == to:
            return [f"the database has version {to} already; nothing was done"]
        lines = [f"a copy of version {version}: {_copied(database, version)}"] if isinstance(database, Path) else []
        async with engine.begin() as connection:
            await connection.run_sync(_refuse_while_led)
            await connection.run_sync(migrate, version, to)
    except Exception as error:
        if (translated := explained(error)) is error:
            raise
        raise translated from translated.__cause__
    finally:
        await engine.dispose()
    return [*lines, f"the database was led from version {version} to version {to}"]


def _known_version(connection: Connection) -> int:
    version = version_of(connection)
    if version is None or not OLDEST <= version <= SCHEMA_VERSION:
        name = "an unknown version" if version is None else "no tables" if version == 0 else f"version {version}"
        raise ConfigurationError(
            f"the database has {name}; this fedcore can lead versions {OLDEST} to {SCHEMA_VERSION} only: use the "
            "newest fedcore of those that wrote it"
        )
    return version


def _copied(path: Path, version: int) -> Path:
    """A complete and durable copy in the database's folder. Only its owner can read it."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    target = path.with_name(f"{path.stem}-version{version}-{moment}{path.suffix}")
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))
    with open(target, "rb") as file:
        os.fsync(file.fileno())
    return target


def migrate(connection: Connection, version: int, to: int) -> None:
    """Run the revisions from `version`, 0 for an empty database, to `to`, in the transaction of the connection."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    script = ScriptDirectory.from_config(config)
    if version:  # a database from before the history was kept does not say its revision
        MigrationContext.configure(connection).stamp(script, revision_of(version))
    lead = script._upgrade_revs if to > version else script._downgrade_revs  # noqa: SLF001 - as alembic's commands

    def revisions(current: Any, _: MigrationContext) -> Any:
        return lead(revision_of(to), current)

    with EnvironmentContext(config, script, fn=revisions) as environment:
        environment.configure(connection=connection, target_metadata=Base.metadata)
        environment.run_migrations()
    if connection.dialect.name == "sqlite":  # earlier versions read this one
        connection.exec_driver_sql(f"PRAGMA user_version = {to}")


def _refuse_while_led(connection: Connection) -> None:
    if "leases" not in inspect(connection).get_table_names():
        return
    leader = connection.execute(select(LeaseRow.holder, LeaseRow.url).where(LeaseRow.until > now())).first()
    if leader is not None:
        raise ConfigurationError(
            f"the server {leader.holder} ({leader.url}) leads the federation; stop all of its servers first"
        )
