"""Connections to the two kinds of databases: how they are opened, and how a transaction begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Float, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.expression import FunctionElement

from fedcore.errors import ConfigurationError
from server_app.storage.tables import dump_json, load_json

READ_ONLY: Final = "fedcore_read_only"
PRAGMAS: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 5000",
)
_CONNECTION: Final = {
    "connect_timeout": 5,
    "application_name": "fedcore",
    # A machine that vanished without a word is noticed after 10 s of silence, in milliseconds.
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "options": "-c synchronous_commit=on -c statement_timeout=30s -c lock_timeout=5s "
    "-c idle_in_transaction_session_timeout=60s",
}


class now(FunctionElement[float]):
    """Seconds since 1970 by the database's clock, which all servers of a federation share."""

    type = Float()
    inherit_cache = True


@compiles(now, "sqlite")
def _now_of_sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _now_of_postgresql(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"


def database_url(text: str) -> URL:
    """The URL of a PostgreSQL database, which is never shown whole; raises ConfigurationError."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigurationError("database is no URL; expected postgresql+psycopg://USER@HOST/NAME") from None
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise ConfigurationError(
            f"database names the driver {url.drivername!r}; expected postgresql+psycopg://USER@HOST/NAME, or nothing "
            "for SQLite in the data folder"
        )
    return url.set(drivername="postgresql+psycopg")


def make_engine(database: Path | str) -> AsyncEngine:
    """An engine over an SQLite file, or over the PostgreSQL database at a URL; raises ConfigurationError."""
    if isinstance(database, Path):
        engine = create_async_engine(
            f"sqlite+aiosqlite:///{database}",
            hide_parameters=True,
            json_serializer=dump_json,
            json_deserializer=load_json,
        )
        event.listen(engine.sync_engine, "connect", _prepare)
        event.listen(engine.sync_engine, "begin", _begin)
        return engine
    url = database_url(database)
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise ConfigurationError("PostgreSQL needs one more package: pip install 'fedcore[postgres]'") from None
    return create_async_engine(
        url,
        hide_parameters=True,
        pool_size=5,
        max_overflow=5,
        pool_timeout=10,
        pool_pre_ping=True,
        connect_args=dict(_CONNECTION),
        # One leader writes, and each of its transactions first locks the lease's row (`Database.fence`); single
        # statements compare and swap. Nothing would be gained by a level that makes a transaction fail and try again.
        isolation_level="READ COMMITTED",
    )


def _prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # The driver's own transactions begin too late and too weakly; `_begin` starts them.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN DEFERRED" if read_only else "BEGIN IMMEDIATE")
