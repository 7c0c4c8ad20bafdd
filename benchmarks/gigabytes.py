"""A round of a model of gigabytes: memory of every process and disk of every party, over the model; seconds.

    python benchmarks/gigabytes.py [--parameters 1e8] [--dtype float32] [--mode secure] [--clients 3]
        [--download-bits 32] [--json]

A server, its ServerApp, and clients with a rank each, all real processes. The app is a few large tensors and one step
of plain SGD (`apps/gigabytes`); with `--app noop` it is an unmodified Flower app whose state goes through records.

Memory is what a process holds and nobody gets back without swapping: anonymous pages, and those of files that are
still to be written, from Linux's smaps_rollup (proc(5)); less the same with a tiny model. Disk is what the files of a
party take at its worst moment, those without a name included.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil

from benchmarks.common import APPS, Figure, Report, Table, parser, run, say, sized
from benchmarks.cut_line import CutLine, lines_of
from benchmarks.live import LiveFederation, live_federation
from benchmarks.resident import Sampling
from fedcore.comparison.local_federation import LocalFederation
from fedcore.wire.base import Scalar
from fedcore.wire.events import ClientDropped, RunEvent, StageProgress, Warned

ROUNDS: Final = 3
TINY: Final = 10_000
SAMPLE_SECONDS: Final = 0.1
ITEM_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
ROLES: Final = {
    "server_app.runs.app.main": "ServerApp",
    "client_app.ranks.rank": "rank",
    "fedcore.flower.first_model.process": "first model",
}
"""What the command line of a process that is no server and no agent contains, and what it is."""
AIMS: Final = {"server": 0.3, "ServerApp": 2.5, "agent": 0.3, "rank": 3.0}
DISK_AIM: Final = 4.0
BANDWIDTH: Final = 100e6 / 8
"""Bytes a second of the lines of `--cuts`."""
LARGE_BYTES: Final = 2.5e9
MIB: Final = float(1 << 20)
_BLOCK_BYTES: Final = 512
"""Of `st_blocks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOf:
    """What the rounds of one model took.

    memory: bytes at the worst moment, by role; of clients the largest.
    disk: likewise, by party.
    seconds: of a round but the first, and of the first.
    line: bytes to and from a client in the last round, by "down" and "up".
    """

    memory: dict[str, int]
    disk: dict[str, int]
    seconds: float
    first: float
    line: dict[str, float]


def main() -> int:
    """The command line."""
    options = parser("Memory and disk of a round of a model of gigabytes.")
    options.add_argument("--parameters", type=float, help="size of the model, in elements (default: 1e8)")
    options.add_argument("--dtype", choices=ITEM_BYTES, default="float32", help="of the model's tensors")
    options.add_argument("--mode", choices=("secure", "plain"), default="secure")
    options.add_argument("--clients", type=int, default=3)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--download-bits", type=int, choices=(16, 32), default=32)
    options.add_argument("--cuts", type=int, default=0, help="in place of memory: a line that is cut so often each way")
    options.add_argument("--app", choices=("gigabytes", "noop"), default="gigabytes")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """The model, and a tiny one whose memory is what the processes take anyway."""
    if arguments.cuts:
        return measure_cuts(arguments)
    default = sized(arguments, smallest=1e6, quick=2e7, whole=1e8)
    parameters = int(arguments.parameters or default)
    size = parameters * ITEM_BYTES[arguments.dtype]
    idle, large = rounds_of(arguments, TINY), rounds_of(arguments, parameters)
    memory = {role: (most - idle.memory.get(role, 0)) / size for role, most in large.memory.items()}
    disk = {party: (most - idle.disk.get(party, 0)) / size for party, most in large.disk.items()}
    figures = [
        Figure(name=f"{role.lower()}_over_model", value=memory.get(role, 0.0), aim=aim) for role, aim in AIMS.items()
    ]
    figures += [
        Figure(name=f"disk_of_{party}_over_model", value=disk.get(party, 0.0), aim=DISK_AIM)
        for party in ("server", "client")
    ]
    rows = [(f"memory of {role}", f"{large.memory[role] / MIB:.0f} MiB", f"{memory[role]:.2f}") for role in memory]
    rows += [(f"disk of {party}", f"{large.disk[party] / MIB:.0f} MiB", f"{disk[party]:.2f}") for party in disk]
    rows += [
        (f"{way}, last round", f"{size / MIB:.0f} MiB", f"{size / parameters:.2f} bytes an element")
        for way, size in large.line.items()
    ]
    rows += [("first round", f"{large.first:.1f} s", ""), ("a later round", f"{large.seconds:.1f} s", "")]
    title = (
        f"{parameters:.3g} parameters of {arguments.dtype} ({size / 1e9:.2f} GB), {arguments.mode}, "
        f"{arguments.clients} clients, {arguments.rounds} rounds, app {arguments.app}"
    )
    return Report(
        benchmark="gigabytes",
        figures=tuple(figures),
        tables=(Table(title=title, header=("", "peak", "over model"), rows=tuple(rows)),),
    )


def measure_cuts(arguments: argparse.Namespace) -> Report:
    """One plain round of two clients over lines, of which one is cut: its bytes less those of the other."""
    parameters = int(arguments.parameters or sized(arguments, smallest=1e6, quick=1e7, whole=6.25e7))
    size = parameters * ITEM_BYTES[arguments.dtype]
    places = [size * (number + 1) // (arguments.cuts + 1) for number in range(arguments.cuts)]
    lines: list[CutLine] = []

    @contextlib.contextmanager
    def cut_lines(federation: LocalFederation) -> Iterator[None]:
        kits = [federation.folder / "clients" / name for name in federation.client_names()]
        with lines_of(kits, federation.port, bandwidth=BANDWIDTH, cuts=[places, []]) as made:
            lines.extend(made)
            yield

    config: dict[str, Scalar] = {"parameters": parameters, "num-server-rounds": 1, "dtype": arguments.dtype}
    settings = {"aggregation": "plain", "train-seconds": 3600.0}
    with live_federation(APPS / "gigabytes", clients=2, allow_plain=True, lines=cut_lines) as federation:
        record = federation.run(run_config=config, settings=settings, hear=say_stage)
    twice = {way: lines[0].passed[way] - lines[1].passed[way] for way in ("down", "up")}
    whole = sum(lines[1].passed.values())
    rows = [
        (way, *(f"{count / 1e6:.1f} MB" for count in (lines[1].passed[way], lost, lost / arguments.cuts)))
        for way, lost in twice.items()
    ]
    title = f"{size / 1e6:.0f} MB each way at 100 Mbit/s, cut {arguments.cuts} times each way, {record.ends[0]:.0f} s"
    return Report(
        benchmark="gigabytes",
        figures=tuple(
            Figure(name=f"sent_twice_{way}_over_2500_MB", value=lost / LARGE_BYTES, aim=0.01)
            for way, lost in twice.items()
        ),
        tables=(Table(title=title, header=("", "uncut", "sent twice", "for each cut"), rows=tuple(rows)),),
        notes=(
            f"of the {whole / 1e6:.0f} MB here {sum(twice.values()) / whole:.2%} were sent twice; what a cut costs "
            "does not grow with the model, so the figures are of 2.5 GB each way",
        ),
    )


def rounds_of(arguments: argparse.Namespace, parameters: int) -> RoundOf:
    """A few rounds in a federation of its own."""
    say(f"{parameters:.3g} parameters: a server and {arguments.clients} clients")
    config: dict[str, Scalar] = {"parameters": parameters, "num-server-rounds": arguments.rounds}
    if arguments.app == "gigabytes":
        config["dtype"] = arguments.dtype
    plain = arguments.mode == "plain"
    settings: dict[str, Scalar] = {"aggregation": "plain"} if plain else {"download-bits": arguments.download_bits}
    with (
        live_federation(APPS / arguments.app, clients=arguments.clients, allow_plain=plain) as federation,
        _Peaks(federation) as peaks,
    ):
        record = federation.run(run_config=config, settings=settings, hear=say_stage)
    later = [after - before for before, after in pairwise(record.ends)]
    seconds = median(later) if later else 0.0
    say(f"{parameters:.3g} parameters: {record.ends[0]:.1f} s to the end of the first round, then {seconds:.1f} s")
    last = record.exchanges[-1]
    line = {
        way: sum(sizes.values()) / arguments.clients
        for way, sizes in (("down", last.bytes_down), ("up", last.bytes_up))
    }
    return RoundOf(memory=dict(peaks.memory), disk=dict(peaks.disk), seconds=seconds, first=record.ends[0], line=line)


def say_stage(event: RunEvent) -> None:
    """Progress of a run whose rounds take minutes."""
    if isinstance(event, StageProgress):
        say(f"exchange {event.exchange}, {event.stage}: {event.done} of {event.expected}, {event.seconds:.1f} s")
    elif isinstance(event, ClientDropped | Warned):
        say(event.reason if isinstance(event, ClientDropped) else event.line)


class _Peaks(Sampling):
    """The most memory of the processes of a federation, by role, and the most disk of its parties."""

    def __init__(self, federation: LiveFederation) -> None:
        super().__init__(SAMPLE_SECONDS)
        self.memory: dict[str, int] = defaultdict(int)
        self.disk: dict[str, int] = defaultdict(int)
        self._server = federation.server_pid
        self._folder = federation.operator_folder.parent

    def look(self) -> None:
        for process in psutil.Process().children():
            # A child that has not become a client yet has no kit.
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                party = "server" if process.pid == self._server else "client"
                folder = self._folder_of(process)
                below = process.children(recursive=True)
                self._note(self.memory, "server" if party == "server" else "agent", held_bytes(process.pid))
                for child in below:
                    with contextlib.suppress(psutil.Error, OSError):
                        self._note(self.memory, _role_of(child), held_bytes(child.pid))
                nameless = nameless_bytes(one.pid for one in (process, *below))
                self._note(self.disk, party, disk_bytes(folder) + nameless)

    def _folder_of(self, process: psutil.Process) -> Path:
        """What belongs to the party of an agent, or the server."""
        if process.pid == self._server:
            return self._folder / "server"
        words = process.cmdline()
        return Path(words[words.index("--kit") + 1])

    def _note(self, peaks: dict[str, int], name: str, size: int) -> None:
        peaks[name] = max(peaks[name], size)


def _role_of(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    return next((role for module, role in ROLES.items() if module in words), "other")


def held_bytes(pid: int) -> int:
    """Anonymous memory of a process, swapped or not, by how many share it, and mapped files still to be written."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0]) * 1024
    unwritten = max(0, sizes["Private_Dirty"] - sizes["Anonymous"])
    return sizes["Pss_Anon"] + sizes["Pss_Shmem"] + sizes["SwapPss"] + unwritten


def disk_bytes(folder: Path) -> int:
    """What the files below a folder take on the disk; one with several names counts once."""
    sizes = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            info = path.lstat()
            sizes[info.st_ino] = info.st_blocks * _BLOCK_BYTES
    return sum(sizes.values())


def nameless_bytes(pids: Iterator[int]) -> int:
    """What files take that processes have open, and that have no name any more."""
    sizes = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    info = link.stat()
                    if info.st_nlink == 0:
                        sizes[info.st_dev, info.st_ino] = info.st_blocks * _BLOCK_BYTES
    return sum(sizes.values())


if __name__ == "__main__":
    sys.exit(main())
