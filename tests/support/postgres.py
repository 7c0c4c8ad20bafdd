"""A PostgreSQL of one's own: a cluster in a temporary folder, reached by a socket there, and a database for each test.

With Debian's binaries (`apt-get install postgresql`), or those on PATH. The server refuses to run as root, so for root
it runs as the user postgres, or nobody.
"""

from __future__ import annotations

import ctypes
import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

_PR_SET_PDEATHSIG = 1
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "100",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}


def binaries() -> Path | None:
    """The folder of initdb and postgres, the newest version first; None where there is none."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda path: int(path.split("/")[4]))
    on_path = shutil.which("postgres")
    path = found[-1] if found else on_path
    return Path(path).parent if path else None


class Cluster:
    """A running PostgreSQL, which dies with the process that made it.

    durable: whether it writes to the disk as in production; without, a commit is quick and survives all but a crash of
    the machine.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        found = binaries()
        assert found is not None, "look at binaries() first"
        self.folder = folder
        self._binaries = found
        self._as: dict[str, Any] = _other_user(folder) if os.geteuid() == 0 else {}
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        initdb = [found / "initdb", "-D", folder / "data", "-U", "fedcore", "-A", "trust", "-E", "UTF8", "--no-locale"]
        self._run([*map(str, initdb), "--no-sync"])
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = {**_SETTINGS, "unix_socket_directories": str(self.folder)}
        if not self._durable:
            settings["fsync"] = "off"
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509
                **self._as,
            )
        while subprocess.run([self._binaries / "pg_isready", "-q", "-h", self.folder], check=False).returncode:
            if self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT: at once, as in a crash; SIGINT: orderly, but all connections are broken off."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def create(self, name: str = "") -> str:
        """A new empty database; its URL for SQLAlchemy."""
        name = name or f"test{next(self._names)}"
        self.execute("postgres", f'CREATE DATABASE "{name}"')
        return self.url(name)

    def url(self, name: str) -> str:
        """The URL of a database for SQLAlchemy and server.toml."""
        return f"postgresql+psycopg://fedcore@/{name}?host={self.folder}"

    def execute(self, name: str, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement in a database, outside of the program's own pools."""
        with psycopg.connect(host=str(self.folder), user="fedcore", dbname=name, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def command(self, name: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs, as this process's user."""
        subprocess.run([self._binaries / name, *arguments], check=True, capture_output=True)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._as)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")


@contextmanager
def cluster(*, durable: bool = False) -> Iterator[Cluster]:
    """A cluster, stopped and removed at the end."""
    # Not below pytest's folder: a socket's path has to be short, and its user has to get there.
    folder = Path(tempfile.mkdtemp(prefix="fedcore-pg-"))
    made: Cluster | None = None
    try:
        made = Cluster(folder, durable=durable)
        yield made
    finally:
        if made is not None:
            made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def new_database(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes the `database` of a server's settings: a test that takes this runs over SQLite and over PostgreSQL."""
    if request.param == "sqlite":
        return str
    running: Cluster = request.getfixturevalue("postgres")
    return running.create


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """One cluster for all tests of this process; skips where PostgreSQL is not installed."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    with cluster() as running:
        yield running


def _other_user(folder: Path) -> dict[str, Any]:
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise RuntimeError("root may not run PostgreSQL, and there is neither a user postgres nor nobody")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
