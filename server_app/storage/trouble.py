"""Errors of the database and the disk, translated: full, unavailable for now, or damaged."""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fedcore.errors import FedcoreError, StorageDamaged, StorageFull, StorageUnavailable

_FULL: Final = "the disk that holds the server's database is full; nothing was taken over"
_DAMAGED: Final = (
    "the server's database is damaged: stop the server, keep the database's files, and put back the last backup "
    "(docs/howto/troubleshooting.md)"
)
_DISK_FULL: Final = "the server's disk is full; try again once there is room"
_AWAY: Final = "the server's database does not answer for now; nothing was taken over, ask again"
_LOCKED: Final = "the server's database is locked by another process; nothing was taken over, ask again"
_READ_ONLY: Final = "the server's database cannot be written to for now (read-only); nothing was taken over, ask again"
_INPUT_OUTPUT: Final = "the disk that holds the server's database fails; nothing was taken over, ask again"

_SQLITE: Final[dict[int, FedcoreError]] = {
    sqlite3.SQLITE_FULL: StorageFull(_FULL),
    sqlite3.SQLITE_BUSY: StorageUnavailable(_LOCKED),
    sqlite3.SQLITE_LOCKED: StorageUnavailable(_LOCKED),
    sqlite3.SQLITE_READONLY: StorageUnavailable(_READ_ONLY),
    sqlite3.SQLITE_IOERR: StorageUnavailable(_INPUT_OUTPUT),
    sqlite3.SQLITE_CANTOPEN: StorageUnavailable(_AWAY),
    sqlite3.SQLITE_CORRUPT: StorageDamaged(_DAMAGED),
    sqlite3.SQLITE_NOTADB: StorageDamaged(_DAMAGED),
}
"""Primary result code -> what it means (https://www.sqlite.org/rescode.html)."""

_POSTGRES: Final[dict[str, FedcoreError]] = {
    "53100": StorageFull(_FULL),
    "25006": StorageUnavailable(_READ_ONLY),
    "08": StorageUnavailable(_AWAY),
    "40": StorageUnavailable(_LOCKED),
    "53": StorageUnavailable(_AWAY),
    "55": StorageUnavailable(_LOCKED),
    "57": StorageUnavailable(_AWAY),
    "58": StorageUnavailable(_INPUT_OUTPUT),
    "XX001": StorageDamaged(_DAMAGED),
    "XX002": StorageDamaged(_DAMAGED),
}
"""SQLSTATE, or the class that its first two characters are (PostgreSQL documentation, appendix A)."""


_DISK: Final[dict[int, FedcoreError]] = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), StorageFull("the server's disk is full; try again later")
    ),
    errno.EROFS: StorageUnavailable("the server's disk is read-only for now; ask again"),
    errno.EIO: StorageUnavailable("the server's disk fails; ask again"),
}


def disk_trouble(error: OSError) -> FedcoreError | None:
    """The error to raise instead of one of the file system, if the disk is at fault; otherwise None."""
    meaning = _DISK.get(error.errno or 0)
    return None if meaning is None else _with_cause(meaning, error)


def explained(error: Exception) -> Exception:
    """`error`, or the error to raise instead if the database is at fault."""
    meaning = _meaning(error)
    if meaning is None:
        return error
    # The driver's own words, for the log; those of SQLAlchemy would come with the statement.
    return _with_cause(meaning, error.orig if isinstance(error, DBAPIError) and error.orig is not None else error)


def explained_sqlite(error: sqlite3.Error) -> FedcoreError:
    """The error to raise instead of one of a bare SQLite connection."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CANTOPEN)
    return _with_cause(_SQLITE.get(code & 0xFF, _SQLITE[sqlite3.SQLITE_CANTOPEN]), error)


def _with_cause(meaning: FedcoreError, cause: BaseException) -> FedcoreError:
    explanation = type(meaning)(str(meaning))
    explanation.__cause__ = cause
    return explanation


def _meaning(error: Exception) -> FedcoreError | None:
    if isinstance(error, PoolTimeout):
        return StorageUnavailable(_AWAY)
    if not isinstance(error, DBAPIError):
        return None
    cause: BaseException | None = error.orig
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE.get(code & 0xFF)
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return _POSTGRES.get(state) or _POSTGRES.get(state[:2])
    # A connection that could not be made, or broke, has no state.
    return StorageUnavailable(_AWAY) if type(error).__name__ == "OperationalError" else None
