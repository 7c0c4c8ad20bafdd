"""Makes a kept federation: make.py PYTHON FILE.tar.gz, where PYTHON has the commit's fedcore installed.

A server and three clients do one secure run; of another one the server is killed in the middle of the second round,
and the clients end. What lies on their disks then is packed.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

APP = Path(__file__).with_name("app")
CLIENTS = ("client-1", "client-2", "client-3")
CAUGHT = "stage: exchange 2, stage share"


def make(python: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fedcore = [python, "-m", "fedcore"]
        subprocess.run([*fedcore, "provision", "fed", "--clients", "3", "--port", "18558"], cwd=folder, check=True)
        shutil.copytree(APP, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
        run = [*fedcore, "run", "app", "--operator", "fed/operator"]
        living = [start(folder, "server", [*fedcore, "server", "--federation", "fed"])]
        for client in CLIENTS:
            kit = f"fed/clients/{client}"
            living.append(start(folder, client, [*fedcore, "client", "--kit", kit, "--app", "app"]))
        try:
            for client in CLIENTS:
                wait_for(folder / f"{client}.log", "connected")
            subprocess.run(run, cwd=folder, check=True)
            before = (folder / "server.log").stat().st_size
            living.append(start(folder, "run", [*run, "--force"]))
            wait_for(folder / "server.log", CAUGHT, after=before)
            living[0].kill()
        finally:
            for process in living[1:]:
                process.terminate()
            for process in living:
                process.wait()
        pack(folder / "fed", target)


def start(folder: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def wait_for(log: Path, text: str, after: int = 0) -> None:
    deadline = time.monotonic() + 60
    while text not in log.read_text(encoding="utf-8")[after:]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log.name} does not say {text!r}: {log.read_text(encoding='utf-8')[-2000:]}")
        time.sleep(0.01)


def pack(fed: Path, target: Path) -> None:
    """All but what the next start makes anew; SQLite's log of writes is carried over, as its next start would."""
    database = sqlite3.connect(fed / "server/data/server.sqlite3")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    for path in [*fed.glob("clients/*/state/apps"), *fed.glob("server/data/*.lock"), *fed.rglob("*-shm")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with tarfile.open(target, "w:gz") as tar:
        tar.add(fed, arcname="fed")


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
