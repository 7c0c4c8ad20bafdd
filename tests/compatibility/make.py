"""Makes a store of what a commit's fedcore leaves on disks: make.py [--postgres] COMMIT.

The commit's code runs from `git archive` with the packages of this Python. A server and three clients do one secure
run. Of another one the server is killed in the middle of the second round, as soon as the update of one client is in
its spool, and the clients end. A simulation with --state is killed after its first round, and a comparison
writes its report. With --postgres there are only the runs, and in place of the database its dump (`pg_dump`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from support.old_code import check_out  # noqa: E402 - the folder of tests is not installed
from support.postgres import Cluster, cluster  # noqa: E402

CLIENTS = ("client-1", "client-2", "client-3")
DUMP = "database.sql"
DATABASE = "fedcore"
"""The name of the one in PostgreSQL."""


def make(commit: str, target: Path, *, postgres: bool) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        running = stack.enter_context(cluster()) if postgres else None
        maker = Maker(check_out(commit, folder / "commit"), work, stack, running)
        for app in ("app", "blobs"):
            origin = HERE / "app" if app == "app" else HERE.parent / "apps" / "blobs"
            shutil.copytree(origin, work / app, ignore=shutil.ignore_patterns("__pycache__"))
        maker.serve()
        if running is not None:
            dump(running, work / DUMP)
        else:
            maker.simulate()
            maker.compare()
        stack.close()
        pack(work, target)


class Maker:
    """The commands of one commit, in one folder."""

    def __init__(self, python: Path, folder: Path, stack: contextlib.ExitStack, postgres: Cluster | None) -> None:
        self.folder = folder
        self.postgres = postgres
        self._fedcore = (str(python), "-m", "fedcore")
        self._environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        if postgres is not None:
            self._environment["FEDCORE_DATABASE"] = postgres.create(DATABASE)
        self._stack = stack

    def serve(self) -> None:
        """A run to its end, and one that a killed server leaves open."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.call("provision", "fed", "--clients", "3", "--port", str(port))
        server = self.start("server", "server", "--federation", "fed")
        clients = [self.start(one, "client", "--kit", f"fed/clients/{one}", "--app", "app") for one in CLIENTS]
        logs = [self.log(client) for client in CLIENTS]
        wait_for("all clients to connect", lambda: all("connected" in log.read_text() for log in logs))
        run = ("run", "app", "--operator", "fed/operator", "--force", "--out")
        self.call(*run, "model.safetensors")
        self.start("run", *run, "open.safetensors")
        wait_for("an update in the second round", lambda: self.updates(exchange=2))
        server.send_signal(signal.SIGKILL)
        for client in clients:
            client.terminate()
        for process in (server, *clients):
            process.wait()

    def updates(self, *, exchange: int) -> int:
        """How many updates of an exchange of the newest run the server accepted."""
        statement = (
            f"SELECT count(*) FROM receipts WHERE step = 'manifest' AND exchange = {exchange} "
            "AND run = (SELECT run FROM runs ORDER BY number DESC LIMIT 1)"
        )
        if self.postgres is not None:
            return int(self.postgres.execute(DATABASE, statement)[0][0])
        database = self.folder / "fed/server/data/server.sqlite3"
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return int(connection.execute(statement).fetchone()[0])

    def simulate(self) -> None:
        """A simulation that was killed after its first round."""
        steps = self.folder / "state/steps"
        run = self.start("simulate", "simulate", "app", "--clients", "3", "--state", "state", "--engine", "inline")
        wait_for("its first round", lambda: any('"exchange"' in one.read_text() for one in steps.glob("*.json")))
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()

    def compare(self) -> None:
        """A comparison's report."""
        options = ("--modes", "federated,centralized", "--clients", "3", "--seeds", "1")
        self.call("compare", "blobs", *options, "--run-config", "num-server-rounds=1", "--out", "compared")

    def call(self, *words: str) -> None:
        subprocess.run([*self._fedcore, *words], cwd=self.folder, env=self._environment, check=True)

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                [*self._fedcore, *words],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._stack.callback(ended, process)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def wait_for(what: str, probe: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 300
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within 300 s")
        time.sleep(0.01)


def dump(postgres: Cluster, target: Path) -> None:
    """The database as SQL that any client runs, without the commands of psql's own that guard newer dumps."""
    where = (f"--host={postgres.folder}", "--username=fedcore")
    postgres.command("pg_dump", "--inserts", "--no-owner", f"--file={target}", *where, DATABASE)
    target.write_text(re.sub(r"(?m)^\\.*\n", "", target.read_text()))


def pack(work: Path, target: Path) -> None:
    """All but what the next start makes again; SQLite's log of writes is carried over, as its next start would."""
    if not (work / DUMP).exists():
        with contextlib.closing(sqlite3.connect(work / "fed/server/data/server.sqlite3")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in [*work.glob("fed/clients/*/state/apps"), *work.glob("fed/server/data/*.lock"), *work.rglob("*-shm")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with tarfile.open(target, "w:gz") as tar:
        names = ("fed", "app", "state", "compared/report.json", DUMP, *(path.name for path in work.glob("model*")))
        for name in filter(lambda name: (work / name).exists(), names):
            tar.add(work / name, arcname=name, filter=lambda one: None if "__pycache__" in one.name else one)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # with all processes that it started
    parser = argparse.ArgumentParser()
    parser.add_argument("commit")
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    kind = "-postgres" if options.postgres else ""
    make(options.commit, HERE / f"{options.commit}{kind}.tar.gz", postgres=options.postgres)
