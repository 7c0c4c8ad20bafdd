"""A server whose disk is full, whose database is locked, and whose object store is read-only: /readyz names each."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.deployment import Deployment, wait_until
from support.postgres import Cluster, binaries


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs the right to mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)


def test_each_of_the_three_is_named_until_it_is_well_again(tmp_path: Path) -> None:
    data, objects = small_disk(tmp_path / "data", "96m"), small_disk(tmp_path / "objects", "8m")
    with data as disk, objects as store, Deployment.open(tmp_path, clients=2) as federation:
        settings = federation.federation.folder / "server" / "server.toml"
        settings.write_text(settings.read_text().replace('objects = ""', f'objects = "{store}"'))
        federation.start_server("--data-dir", disk)
        trusted = ssl.create_default_context(cafile=settings.parent / "ca.crt")
        url = f"https://localhost:{federation.federation.port}/readyz"
        with httpx.Client(verify=trusted, trust_env=False) as http:

            def named() -> set[str]:
                answer = http.get(url)
                detail = answer.json()["detail"] if answer.status_code == 503 else ""
                return {
                    what for what in ("database: ", "disk of the data folder: ", "object store: ") if what in detail
                }

            assert http.get(url).status_code == 200
            remount(store, "ro")
            wait_until("the object store to be named", lambda: named() == {"object store: "})
            other = sqlite3.connect(disk / "server.sqlite3", isolation_level=None)
            other.execute("BEGIN EXCLUSIVE")
            wait_until("the database to be named", lambda: named() == {"database: ", "object store: "})
            other.execute("ROLLBACK")
            other.close()
            with (disk / "ballast").open("wb") as file:
                for _ in range((shutil.disk_usage(disk).free - (32 << 20)) >> 20):
                    file.write(bytes(1 << 20))
            wait_until("the disk to be named", lambda: named() == {"disk of the data folder: ", "object store: "})
            (disk / "ballast").unlink()
            remount(store, "rw")
            wait_until("all to be well", lambda: http.get(url).status_code == 200)


@pytest.mark.skipif(binaries() is None, reason="PostgreSQL is not installed (apt-get install postgresql)")
def test_a_full_disk_of_postgresql_is_named(tmp_path: Path) -> None:
    """Rows that are written in the place of others still succeed there."""
    with tempfile.TemporaryDirectory(prefix="fedcore-pg-") as short, Deployment.open(tmp_path, clients=2) as federation:
        Path(short).chmod(0o755)  # for the user of PostgreSQL
        with small_disk(Path(short) / "disk", "128m") as disk:
            cluster = Cluster(disk)
            try:
                settings = federation.federation.folder / "server" / "server.toml"
                settings.write_text(settings.read_text().replace('database = ""', f'database = "{cluster.create()}"'))
                federation.start_server()
                trusted = ssl.create_default_context(cafile=settings.parent / "ca.crt")
                url = f"https://localhost:{federation.federation.port}/readyz"
                with httpx.Client(verify=trusted, trust_env=False) as http:
                    wait_until("the server to be ready", lambda: http.get(url).status_code == 200)
                    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                        while True:
                            file.write(bytes(4096))
                    wait_until("the database to be named", lambda: "database: " in http.get(url).text)
                    (disk / "ballast").unlink()
                    wait_until("all to be well", lambda: http.get(url).status_code == 200)
                assert federation.stop("server") == 0
            finally:
                cluster.stop()
