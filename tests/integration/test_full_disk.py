"""The server's disk is full when an update arrives: it is refused whole, everybody goes on, and nothing is lost."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.deployment import Deployment
from support.tiny import load_problem

problem = load_problem()
TOLD = "the server's disk is full"
SIZE, KEPT = "96m", 32 << 20
"""The whole disk, and what the tests leave free of it: less than the server keeps in reserve."""


@dataclass(frozen=True, slots=True)
class Cramped:
    """Two clients, and a server whose data lie on a small disk."""

    federation: Deployment
    disk: Path

    @property
    def ballast(self) -> Path:
        """The file that fills the disk."""
        return self.disk / "ballast"

    def fill(self) -> None:
        """Leave no room for an upload."""
        with self.ballast.open("wb") as file:
            for _ in range((shutil.disk_usage(self.disk).free - KEPT) >> 20):
                file.write(bytes(1 << 20))

    def ready(self) -> Cramped:
        """With an empty disk again, whatever the test before did."""
        self.ballast.unlink(missing_ok=True)
        self.federation.revive()
        return self


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cramped]:
    """A federation of two over a disk of its own."""
    folder = tmp_path_factory.mktemp("cramped")
    with small_disk(folder / "disk") as disk, Deployment.open(folder, clients=2) as federation:
        federation.start("--data-dir", disk)
        yield Cramped(federation, disk)


@pytest.fixture
def cramped(two: Cramped) -> Cramped:
    """Ready for the next test."""
    return two.ready()


def test_an_update_waits_until_there_is_room(cramped: Cramped) -> None:
    two = cramped.federation
    run = two.submit(gated=True)
    run.wait_for_training()
    cramped.fill()
    run.go_on()
    two.wait_for_log("server", TOLD)
    two.wait_for_log("client-1", TOLD)
    two.wait_for_log("client-2", TOLD)
    assert list((cramped.disk / "spool").iterdir()) == []
    cramped.ballast.unlink()
    done = run.finish()
    assert done.status == 0, done.stderr
    train = done.of("exchange-done")[0]
    assert train["survivors"] == ["client-1", "client-2"]
    start = problem.initial()["weight"]
    expected = start - np.float32(0.5) * problem.gradient(start, *problem.part(0, 1))
    np.testing.assert_allclose(done.arrays()["weight"], expected, rtol=0, atol=2e-6)


def test_a_disk_that_stays_full_fails_the_run_and_not_the_server(cramped: Cramped) -> None:
    two, limits = cramped.federation, {"train-seconds": 10.0, "step-seconds": 8.0, "max-attempts": 1}
    server = two.process("server")
    run = two.submit(gated=True, settings=limits)
    run.wait_for_training()
    cramped.fill()
    run.go_on()
    done = run.finish()
    assert done.status == 5
    assert re.search(r"\b0\b.*'input'", done.stderr)
    assert "disk was full" in done.stderr
    cramped.ballast.unlink()
    again = two.submit().finish()
    assert again.status == 0, again.stderr
    assert again.of("exchange-done")[0]["survivors"] == ["client-1", "client-2"]
    assert server.poll() is None
