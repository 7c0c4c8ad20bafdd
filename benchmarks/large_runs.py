"""Memory of clients and simulations of a large model, with three clients, and their processor seconds.

    python benchmarks/large_runs.py [--quick] [--json]

`fedcore simulate` trains a model of 1e8 parameters, one step of plain SGD for each client and round, inline, with one
worker and with two, secure and plain. Measured is the memory of all its processes together (proportional set size, so
that shared pages count once), without what is mapped from files, which the kernel takes back if it needs it, and less
what the same run takes with a tiny model; and the most that one worker takes of it.

The same app runs in a federation of real processes, whose memory is measured likewise: of each client (agent and rank
together), of the server, and of the ServerApp.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil

from benchmarks.common import APPS, Figure, Report, Table, parser, quiet_environment, run, say, sized
from benchmarks.live import live_federation
from benchmarks.resident import SAMPLE_SECONDS, Sampling
from fedcore.errors import EnvironmentFailure
from fedcore.wire.base import Scalar

CLIENTS = 3
ROUNDS = 3
TINY = "digits"
WAYS = {
    "secure, inline": ("--engine", "inline"),
    "secure, 1 worker": ("--workers", "1"),
    "secure, 2 workers": ("--workers", "2"),
    "plain, inline": ("--engine", "inline", "--aggregation", "plain"),
    "plain, 2 workers": ("--workers", "2", "--aggregation", "plain"),
}
FLOAT32_BYTES = 4
MIB = float(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeSimulation:
    """anonymous: bytes of all processes at the worst moment. worker: of the one that trains. processor: seconds."""

    anonymous: int
    worker: int
    processor: float


def main() -> int:
    """The command line."""
    return run(measure, parser("Memory of clients and simulations of a large model.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All ways, each next to the same with a tiny model."""
    model = sized(arguments, smallest="wide-1e6", quick="wide-1e8", whole="wide-1e8")
    ways = sized(arguments, smallest=["secure, 1 worker"], quick=["secure, 1 worker"], whole=list(WAYS))
    size = float(model.removeprefix("wide-")) * FLOAT32_BYTES
    rows: list[tuple[str, ...]] = []
    over = {}
    for way in ways:
        idle, large = simulated(way, TINY), simulated(way, model)
        whole, worker = ((now - then) / size for now, then in _pairs(large, idle))
        over[way] = whole, worker
        processor = (large.processor - idle.processor) / (CLIENTS * ROUNDS)
        of_worker = f"{worker:.2f}" if "worker" in way else ""
        rows.append((way, f"{large.anonymous / MIB:.0f}", f"{whole:.2f}", of_worker, f"{processor:.1f}"))
        say(f"{way}: {whole:.2f} models, {processor:.1f} processor s for each client and round")
    header = ("way", "MiB", "over model", "a worker over model", "processor s of a client in a round")
    tables = [Table(title=f"{model}, {CLIENTS} clients, {ROUNDS} rounds", header=header, rows=tuple(rows))]
    figures = []
    if secure := over.get("secure, inline"):
        figures.append(Figure(name="simulation_over_model", value=secure[0], aim=6.0))
    small, big = deployed(TINY), deployed(model)
    taken = {who: (big[who] - small[who]) / size for who in big}
    figures.append(Figure(name="client_over_model", value=taken["client"], aim=4.0))
    rows = [(who, f"{big[who] / MIB:.0f}", f"{over_model:.2f}") for who, over_model in taken.items()]
    tables.append(Table(title="Real processes, secure", header=("", "MiB", "over model"), rows=tuple(rows)))
    return Report(benchmark="large_runs", figures=tuple(figures), tables=tuple(tables))


def _pairs(large: LargeSimulation, idle: LargeSimulation) -> tuple[tuple[int, int], tuple[int, int]]:
    return (large.anonymous, idle.anonymous), (large.worker, idle.worker)


def simulated(way: str, model: str) -> LargeSimulation:
    """One run in a folder of its own; raises EnvironmentFailure if it fails."""
    config = f'model="{model}" examples=10 num-server-rounds={ROUNDS}'
    with TemporaryDirectory(prefix="fedcore-large-") as folder:
        command = [sys.executable, "-m", "fedcore", "simulate", str(APPS / "simulated"), *WAYS[way]]
        command += ["--clients", str(CLIENTS), "--run-config", config]
        before = os.times()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **quiet_environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with _Tree(process.pid) as tree:
            output, _ = process.communicate()
        after = os.times()
    if process.returncode:
        raise EnvironmentFailure(f"a simulation ended with {process.returncode}:\n{output}")
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return LargeSimulation(anonymous=tree.together, worker=tree.worker, processor=processor)


def deployed(model: str) -> dict[str, int]:
    """Bytes at the worst moment: of the largest client with its ranks, of the server, and of the ServerApp."""
    with live_federation(APPS / "simulated", clients=CLIENTS) as federation:
        config: dict[str, Scalar] = {"model": model, "examples": 10, "num-server-rounds": ROUNDS}
        with _Processes(federation.server_pid) as processes:
            federation.run(run_config=config, settings={})
    return processes.peaks


class _Processes(Sampling):
    """The most anonymous memory of the processes of a federation that this one has started."""

    def __init__(self, server: int) -> None:
        super().__init__(SAMPLE_SECONDS)
        self.peaks = {"client": 0, "of which the agent": 0, "server": 0, "ServerApp": 0}
        self._server = server

    def look(self) -> None:
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error, OSError):
                own, below = _anonymous(process.pid), sum(_anonymous(o.pid) for o in process.children(recursive=True))
                if process.pid == self._server:
                    self._note({"server": own, "ServerApp": below})
                else:
                    self._note({"client": own + below, "of which the agent": own})

    def _note(self, sizes: Mapping[str, int]) -> None:
        for who, size in sizes.items():
            self.peaks[who] = max(self.peaks[who], size)


class _Tree(Sampling):
    """The most that a process and its descendants have of anonymous memory, and the largest of the descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(SAMPLE_SECONDS)
        self.together = self.worker = 0
        self._pid = pid

    def look(self) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            root = psutil.Process(self._pid)
            own, *others = (_anonymous(one.pid) for one in [root, *root.children(recursive=True)])
            self.together = max(self.together, own + sum(others))
            self.worker = max(self.worker, *others, 0)


def _anonymous(pid: int) -> int:
    """Bytes, those that processes share divided by their number."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main())
