"""A database that refuses for a while, as SQLite does when it is locked or its file system has turned read-only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from server_app.storage.store import Store

LOCKED = "database is locked"
READ_ONLY = "attempt to write a readonly database"
_CODES = {LOCKED: sqlite3.SQLITE_BUSY, READ_ONLY: sqlite3.SQLITE_READONLY}
_WRITES = ("INSERT", "UPDATE", "DELETE")


@contextmanager
def refusing(store: Store, text: str) -> Iterator[list[str]]:
    """Every write (and where it is locked, every statement) fails with `text`; the statements that did."""
    refused: list[str] = []

    def refuse(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if text == LOCKED or statement.startswith(_WRITES):
            refused.append(statement)
            error = sqlite3.OperationalError(text)
            error.sqlite_errorcode = _CODES[text]
            raise OperationalError(statement, {}, error)

    engine = store.database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", refuse)
    try:
        yield refused
    finally:
        event.remove(engine, "before_cursor_execute", refuse)
