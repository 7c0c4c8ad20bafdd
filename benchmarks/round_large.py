"""A secure round of a large model with three clients: seconds, memory of server and clients, temporary disk."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil

from benchmarks.common import APPS, Table, say
from benchmarks.live import live_federation
from benchmarks.resident import Sampling, peak_resident_bytes, reset_peak
from fedcore.errors import EnvironmentFailure

PARAMETERS = 10**8
CLIENTS = 3
ROUNDS = 3
SAMPLE_SECONDS = 0.5
MODEL_BYTES = PARAMETERS * 4
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRound:
    """What such a round takes; memory and disk are peaks in bytes, of one process each.

    disk: of all files of server and clients that have a name, the models that stay included.
    """

    seconds: float
    server: int
    server_app: int
    agent: int
    rank: int
    disk: int

    def table(self) -> Table:
        """For the report."""
        rows = [("seconds", f"{self.seconds:.1f}", "")]
        sizes = {
            "memory of the server": self.server,
            "memory of the ServerApp": self.server_app,
            "memory of an agent": self.agent,
            "memory of a rank": self.rank,
            "disk, server and clients": self.disk,
        }
        rows += [(name, f"{size / 2**20:.0f} MiB", f"{size / MODEL_BYTES:.2f}") for name, size in sizes.items()]
        header = ("", "peak", "over model")
        return Table(title=f"A secure round: d = 1e8, {CLIENTS} clients", header=header, rows=tuple(rows))


def measure_large() -> LargeRound:
    """A few rounds in a federation of its own."""
    say(f"d = 1e8: a server and {CLIENTS} clients")
    with live_federation(APPS / "noop", clients=CLIENTS) as federation:
        peaks = _Peaks(federation.server_pid, federation.operator_folder.parent)
        with peaks:
            record = federation.run(run_config={"parameters": PARAMETERS, "num-server-rounds": ROUNDS}, settings={})
    seconds = median(after - before for before, after in pairwise(record.ends))
    say(f"d = 1e8: {seconds:.1f} s a round")
    return LargeRound(
        seconds=seconds,
        server=peaks.server,
        server_app=peaks.under_server,
        agent=peaks.agent,
        rank=peaks.rank,
        disk=peaks.disk,
    )


class _Peaks(Sampling):
    """The highest peaks of the processes of a federation, and of what its folder holds, sampled as long as it lasts."""

    def __init__(self, server: int, folder: Path) -> None:
        super().__init__(SAMPLE_SECONDS)
        self.server = self.under_server = self.agent = self.rank = self.disk = 0
        self._server = server
        self._folder = folder
        reset_peak(server)

    def look(self) -> None:
        self.disk = max(self.disk, _disk_bytes(self._folder))
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, EnvironmentFailure):
                here, under = peak_resident_bytes(child.pid), _peak_of_children(child)
                if child.pid == self._server:
                    self.server, self.under_server = max(self.server, here), max(self.under_server, under)
                else:
                    self.agent, self.rank = max(self.agent, here), max(self.rank, under)


def _peak_of_children(process: psutil.Process) -> int:
    peak = 0
    for child in process.children(recursive=True):
        with contextlib.suppress(EnvironmentFailure):
            peak = max(peak, peak_resident_bytes(child.pid))
    return peak


def _disk_bytes(folder: Path) -> int:
    """What the files below `folder` take on the disk; one with two names counts once."""
    seen: dict[int, int] = {}
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(at, name))
                seen[found.st_ino] = found.st_blocks * _BLOCK_BYTES
    return sum(seen.values())
