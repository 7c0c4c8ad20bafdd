"""Where the servers of the kill harness keep what they know: SQLite and files, or PostgreSQL and objects."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.postgres import Cluster

DATABASE: Final = "server.sqlite3"


@dataclass(slots=True)
class Storage:
    """Of one federation.

    data: the folder of the objects, and of the database if that is SQLite. cluster: None for SQLite. name: of the
    database in it. server_file: server.toml, which names it. spare: a folder for backups, on another disk.
    """

    data: Path
    server_file: Path
    spare: Path
    cluster: Cluster | None = None
    name: str = ""
    _copies: int = field(default=0, init=False)

    def back_up(self) -> Path:
        """A copy as docs/howto/operating.md makes it: the database first, since a surplus object does no harm."""
        self._copies += 1
        copy = self.spare / f"backup-{self._copies}"
        copy.mkdir(parents=True)
        if self.cluster is None:
            with (
                contextlib.closing(sqlite3.connect(self.data / DATABASE, timeout=30)) as source,
                contextlib.closing(sqlite3.connect(copy / DATABASE)) as target,
            ):
                source.backup(target)
            _copy(self.data / "runs", copy / "runs")
        else:
            self.cluster.command("pg_dump", "--format=custom", f"--file={copy / 'dump'}", self._address(self.name))
            _copy(self.data, copy / "objects")
        return copy

    def restore(self, copy: Path) -> None:
        """Put a backup in place of what is there; no server runs."""
        for path in self.data.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.cluster is None:
            _copy(copy, self.data)
            return
        _copy(copy / "objects", self.data)
        before = self.cluster.url(self.name)
        self._copies += 1
        self.name = f"restored{self._copies}"
        url = self.cluster.create(self.name)
        self.cluster.command("pg_restore", "--no-owner", f"--dbname={self._address(self.name)}", str(copy / "dump"))
        text = self.server_file.read_text(encoding="utf-8").replace(f'"{before}"', f'"{url}"')
        self.server_file.write_text(text, encoding="utf-8")

    def is_needed(self, update: Path) -> bool:
        """Whether a server that starts reads an update: its exchange is open, it was accepted, and is in no kept sum.

        No server runs. update: runs/RUN/exchanges/NUMBER/updates/CLIENT, or replies.
        """
        *_, run, _, number, _, client = update.relative_to(self.data).parts
        where = f"run = '{run}' AND exchange = {int(number)}"
        rows = self._query(f"SELECT result, folded FROM exchanges WHERE {where}")
        accepted = self._query(f"SELECT 1 FROM receipts WHERE {where} AND step = 'manifest' AND client = {int(client)}")
        if not rows or not accepted or _json(rows[0][0]) is not None:
            return False
        folded = _json(rows[0][1])
        return folded is None or int(client) not in folded["clients"]

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        if self.cluster is not None:
            return self.cluster.execute(self.name, statement)
        with contextlib.closing(sqlite3.connect(self.data / DATABASE, timeout=30)) as database:
            return database.execute(statement).fetchall()

    def _address(self, name: str) -> str:
        assert self.cluster is not None, "for PostgreSQL"
        return self.cluster.url(name).replace("+psycopg", "")


def _json(value: Any) -> Any:
    """A column with JSON, which SQLite gives as text."""
    return json.loads(value) if isinstance(value, str) else value


def _copy(source: Path, target: Path) -> None:
    """All files; one that a server removes meanwhile is left out."""
    with contextlib.suppress(shutil.Error, FileNotFoundError):
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
