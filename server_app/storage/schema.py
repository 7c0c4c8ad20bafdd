"""Which version of the tables a database has."""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select

from fedcore.errors import ConfigurationError
from server_app.storage.tables import SCHEMA_VERSION, Base

_ALEMBIC = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def revision_of(version: int) -> str:
    """The name of alembic's revision that makes the tables of a version; the first that it knows is version 2."""
    return f"{version - 1:04}"


def version_of(connection: Connection) -> int | None:
    """The version of the tables that are there; 0 for an empty database, None where nothing says which."""
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
    """Fill an empty database; ConfigurationError for one of another version. name: of the database, for people."""
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
