"""The server's disk is full when an update arrives: it is refused whole, everybody goes on, and nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.deployment import Deployment
from support.tiny import load_problem

problem = load_problem()
TOLD = "the server's disk is full"
SIZE, KEPT = "96m", 32 << 20
"""The whole disk, and what the tests leave free of it: less than the server keeps in reserve."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def two(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two clients, and a server whose data lie on the small disk."""
    with Deployment.open(tmp_path_factory.mktemp("two"), clients=2) as deployment:
        deployment.start_server("--data-dir", disk)
        deployment.start_clients()
        yield deployment


@pytest.fixture
def ballast(disk: Path) -> Iterator[Path]:
    """A file that fills the disk once a test calls `fill`."""
    path = disk / "ballast"
    yield path
    path.unlink(missing_ok=True)


def fill(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range((shutil.disk_usage(path.parent).free - KEPT) >> 20):
            file.write(bytes(1 << 20))


def test_an_update_waits_until_there_is_room(two: Deployment, disk: Path, ballast: Path) -> None:
    run = two.submit(pause=2.0)
    run.wait_for_training()
    fill(ballast)
    two.wait_for_log("server", TOLD)
    two.wait_for_log("client-1", TOLD)
    two.wait_for_log("client-2", TOLD)
    assert list((disk / "spool").iterdir()) == []
    ballast.unlink()
    done = run.finish()
    assert done.status == 0, done.stderr
    train = done.of("exchange-done")[0]
    assert train["survivors"] == ["client-1", "client-2"]
    start = problem.initial()["weight"]
    expected = start - np.float32(0.5) * problem.gradient(start, *problem.part(0, 1))
    np.testing.assert_allclose(done.arrays()["weight"], expected, rtol=0, atol=2e-6)


def test_a_disk_that_stays_full_fails_the_run_and_not_the_server(two: Deployment, ballast: Path) -> None:
    server, limits = two.process("server"), {"train-seconds": 4.0, "step-seconds": 4.0, "max-attempts": 1}
    run = two.submit(pause=2.0, settings=limits)
    run.wait_for_training()
    fill(ballast)
    done = run.finish()
    assert done.status == 5
    assert "0 clients are left at step 'input'" in done.stderr
    assert "the server's disk was full when an upload came" in done.stderr
    ballast.unlink()
    again = two.submit().finish()
    assert again.status == 0, again.stderr
    assert again.of("exchange-done")[0]["survivors"] == ["client-1", "client-2"]
    assert server.poll() is None
