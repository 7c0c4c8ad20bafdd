"""Rounds over slow lines: how long one takes over what its bytes take at the speed of the line.

    python benchmarks/wan.py [--json] [--quick] [--lines 10mbit,80ms 2mbit,300ms] [--sizes 1e6] [--kinds plain]

Each site is a network namespace on a line of its own, with TCP of the kernel and TLS; the server's line is fast. The
app trains nothing. limit: the bytes of a round, the model or its change down and the update up, at the speed of the
line; round trips, headers and TCP's beginning are what is above it. The first round of a run, in which nothing is known
of magnitudes, is compared with the model down and the last round's update up. Owners' policies name the app's own first
model, as stock ones do: in a secure run nobody downloads it, and the first round has the seconds that the sites take to
derive it, all on this machine's processors.

Flower's column is plain, with the same app and TLS: `wan_flower.py`.

A line of 300 ms loses one packet of a hundred, and a packet that would wait a second for a line is lost as well. The
cut takes one site's line away for a minute in the middle of its upload; the run has to end with that site in every
round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import APPS, Figure, Report, Table, parser, quiet_environment, run, say, sized, wait_connected
from benchmarks.relay import MTU, Cuts, Node, is_possible, nodes
from benchmarks.wan_flower import flower_sites
from fedcore.comparison.federation import follow
from fedcore.comparison.local_federation import FEDCORE, run_command
from fedcore.errors import EnvironmentFailure
from fedcore.federation import Policy, provision
from fedcore.federation.policy import APP_MODEL
from fedcore.monitoring.line_speed import LineSpeed
from fedcore.monitoring.run_record import RunRecord
from fedcore.simulation.devices.network import PLAIN_TRIPS, SECURE_TRIPS
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.base import Scalar
from fedcore.wire.events import RunEvent, StageProgress

CLIENTS = 4
PORT = 8443
SERVER_BITS = 1e9
QUEUE_SECONDS = 1.0
LOSS = 0.01
LOSSY_TRIP = 0.2
"""Round trips from which on a line loses packets, in seconds."""
CONNECT_SECONDS = 240.0
CUT_AFTER = 8.0
CUT_SECONDS = 60.0
LATER_AIM = 1.15
FIRST_AIM = 1.5
KINDS: Mapping[str, Mapping[str, Scalar]] = {
    "plain": {"aggregation": "plain"},
    "secure": {},
    "quarter": {"upload-fraction": 0.25},
}
"""Settings by kind; secure: 16 bits up, quarter: 8 bits. Down come 32 bits, or those of the last sum if it was not wide
and a line was known to be slow."""
FLOWER = "flower"
"""Flower's plain rounds, in place of our settings."""
PLAIN_BYTES = 4
"""A parameter's each way, of plain rounds of both."""
TRIPS = {"plain": PLAIN_TRIPS, "secure": SECURE_TRIPS, "quarter": SECURE_TRIPS}
"""Round trips of a round that wait for one another; those of the keys pass while the model comes."""
HEADERS = MTU / (MTU - 52) * (1 + 22 / 2**14)
"""Bytes on the line over those that are sent: IPv4, TCP with timestamps, records of TLS."""
FLOWER_AIM = 1.0
"""The least that Flower's seconds may be of our rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run. seconds: of each round, or none if it failed, with the reason. cut: seconds that a line was away."""

    line: str
    parameters: int
    kind: str
    seconds: tuple[float, ...] = ()
    sent: tuple[tuple[int, int], ...] = ()
    """Bytes of each round down to a site and up from it, with the heads of requests."""
    failure: str = ""
    cut: float = 0.0

    @property
    def name(self) -> str:
        """For figures."""
        cut = "_cut" if self.cut else ""
        return f"{self.kind}_{_power(self.parameters)}_{self.line.replace(',', '_')}{cut}"

    def limit(self, number: int) -> float:
        """Seconds of the bytes of a round at the speed of the line; of the first those of the model, which sites may
        derive, and of the last one's update."""
        speed = LineSpeed.parse(self.line)
        assert speed.down is not None
        assert speed.up is not None
        down = self.sent[number][0] if number else PLAIN_BYTES * self.parameters
        return down / speed.down + self.sent[number or -1][1] / speed.up

    @property
    def limits(self) -> list[float]:
        """Of all rounds."""
        return [self.limit(number) for number in range(len(self.seconds))]

    def over_limit(self) -> float:
        """The later rounds' seconds over their limits."""
        return median(seconds / self.limit(number) for number, seconds in enumerate(self.seconds) if number)

    def over_all(self) -> float:
        """The same with what TCP, IP and TLS add to each packet, and with the round trips."""
        trips = TRIPS[self.kind] * (LineSpeed.parse(self.line).round_trip or 0.0)
        limits = (limit * HEADERS + trips for limit in self.limits[1:])
        return median(seconds / limit for seconds, limit in zip(self.seconds[1:], limits, strict=True))

    def figures(self) -> list[Figure]:
        """Those of a run that ended well; with a cut, whether it did."""
        if self.cut:
            return [Figure(name=f"ends_well_{self.name}", value=float(not self.failure), aim=1.0, at_least=True)]
        if not self.seconds or self.kind == FLOWER:
            return []
        first = Figure(
            name=f"first_round_over_line_limit_{self.name}",
            value=self.seconds[0] / self.limit(0),
            aim=FIRST_AIM,
        )
        if len(self.seconds) == 1:
            return [first]
        return [first, Figure(name=f"round_over_line_limit_{self.name}", value=self.over_limit(), aim=LATER_AIM)]

    def row(self) -> tuple[str, ...]:
        """For the table."""
        head = (self.line, _power(self.parameters), self.kind + (f", cut for {self.cut:.0f} s" if self.cut else ""))
        if not self.seconds:
            return (*head, "failed", *[""] * 5)
        mb = " ".join(f"{(down + up) / 1e6:.1f}" for down, up in self.sent)
        times = (mb, *(" ".join(f"{one:.1f}" for one in each) for each in (self.limits, self.seconds)))
        first = f"{self.seconds[0] / self.limit(0):.2f}"
        if len(self.seconds) == 1:
            return (*head, *times, first, "", "")
        over_all = f"{self.over_all():.2f}" if self.kind in TRIPS else ""
        return (*head, *times, first, f"{self.over_limit():.2f}", over_all)


@dataclass(slots=True, kw_only=True)
class Sites:
    """A federation whose sites are on one kind of line."""

    line: str
    server: Node
    clients: Sequence[Node]
    cuts: Cuts
    folder: Path
    operator: Path
    group: ChildProcesses
    runs: int = field(default=0)

    def run(self, kind: str, parameters: int, *, rounds: int, cut: float = 0.0) -> Cell:
        """One run; its failure is a result. cut: seconds for which one site's line is away in its first upload."""
        self.runs += 1
        name, cutting = f"run-{self.runs}", threading.Event()
        command = run_command(
            APPS / "noop",
            self.operator,
            out=self.folder / "model.safetensors",
            run_config={"num-server-rounds": rounds, "parameters": parameters, "min-nodes": CLIENTS},
            settings={"min-clients": CLIENTS, **KINDS[kind]},
        )

        def hear(event: RunEvent) -> None:
            shared = isinstance(event, StageProgress) and event.stage == "share" and event.done == event.expected
            if cut and shared and not cutting.is_set():
                cutting.set()
                threading.Thread(target=self._cut, args=(cut,), daemon=True).start()

        child = self.group.start(name, [*self.server.command(), *command], piped=True)
        try:
            record = follow(self.group, child, hear)
        finally:
            self.group.stop(name)
        failure = record.reason if record.status != "finished" else ""
        if not failure and (record.dropouts or record.failures):
            failure = "; ".join(map(str, [*record.dropouts, *record.failures]))
        seconds = () if failure else round_seconds(record)
        sent = tuple(
            (max(one.bytes_down.values()), max(one.bytes_up.values())) for one in record.exchanges if one.trains
        )
        made = Cell(
            line=self.line, parameters=parameters, kind=kind, seconds=seconds, sent=sent, failure=failure, cut=cut
        )
        say(f"{', '.join(made.row())} {failure}")
        return made

    def _cut(self, seconds: float) -> None:
        time.sleep(CUT_AFTER)
        for is_cut, pause in ((True, seconds), (False, 0.0)):
            self.cuts.set(self.clients[0], [self.server], cut=is_cut)
            time.sleep(pause)


def round_seconds(record: RunRecord) -> tuple[float, ...]:
    """Of each training: the first from when it was opened, each other from the end of the one before."""
    trainings = [(one, end) for one, end in zip(record.exchanges, record.ends, strict=True) if one.trains]
    if not trainings:
        return ()
    return (trainings[0][0].seconds, *(after - before for (_, before), (_, after) in pairwise(trainings)))


@contextmanager
def nodes_on(line: str, cuts: Cuts) -> Iterator[list[Node]]:
    """A server's namespace, and one for each client on a line of its own."""
    speed = LineSpeed.parse(line)
    assert speed.down is not None
    trip = speed.round_trip or 0.0
    with nodes(
        CLIENTS + 1,
        bandwidth=speed.down * 8,
        latency=trip / 2,
        cuts=cuts,
        first=SERVER_BITS,
        queue=QUEUE_SECONDS,
        loss=LOSS / 2 if trip >= LOSSY_TRIP else 0.0,
    ) as made:
        yield made


@contextmanager
def sites_on(line: str) -> Iterator[Sites]:
    """A server and clients, each in a namespace; all have joined when the block begins."""
    cuts = Cuts(CLIENTS + 1)
    with (
        tempfile.TemporaryDirectory(prefix="fedcore-wan-") as name,
        nodes_on(line, cuts) as (server, *clients),
        ChildProcesses(Path(name) / "logs", quiet_environment()) as group,
    ):
        made = provision(
            Path(name) / "federation",
            name="wan",
            clients=CLIENTS,
            now=datetime.now(UTC),
            hosts=[server.address],
            port=PORT,
            policy=Policy.own(CLIENTS, allow_plain=True, first_models=(APP_MODEL,)),
        )
        group.start("server", [*server.command(), *FEDCORE, "server", "--federation", Path(name) / "federation"])
        for node, kit in zip(clients, made.clients, strict=True):
            group.start(kit.name, [*node.command(), *FEDCORE, "client", "--kit", kit, "--app", APPS / "noop"])
        wait_connected(group, [kit.name for kit in made.clients], CONNECT_SECONDS)
        yield Sites(
            line=line,
            server=server,
            clients=clients,
            cuts=cuts,
            folder=Path(name),
            operator=made.operator,
            group=group,
        )


def flower_on(line: str, sizes: Sequence[int], *, rounds: int) -> Iterator[Cell]:
    """Runs of Flower, one a size; a failure is a result."""
    with tempfile.TemporaryDirectory(prefix="fedcore-wan-", ignore_cleanup_errors=True) as name:
        try:
            with (
                nodes_on(line, Cuts(CLIENTS + 1)) as (server, *clients),
                flower_sites(server, clients, Path(name)) as sites,
            ):
                for size in sizes:
                    seconds = sites.run(size, rounds=rounds)
                    sent = ((PLAIN_BYTES * size, PLAIN_BYTES * size),) * rounds
                    cell = Cell(line=line, parameters=size, kind=FLOWER, seconds=seconds, sent=sent)
                    say(", ".join(cell.row()))
                    yield cell
        except EnvironmentFailure as error:
            say(f"{line}, Flower: {error}")
            yield Cell(line=line, parameters=sizes[0], kind=FLOWER, failure=str(error))


# --- the report -----------------------------------------------------------------------------------------------------


def measure(arguments: argparse.Namespace) -> Report:
    """All lines, sizes and kinds, and the cut."""
    if not is_possible():
        raise EnvironmentFailure("this benchmark makes network namespaces and TUN devices: Linux, as root")
    lines = arguments.lines or sized(
        arguments,
        smallest=["100mbit,2ms"],
        quick=["10mbit,80ms"],
        whole=["10mbit,80ms", "2mbit,300ms", "1mbit,300ms"],
    )
    sizes = [int(size) for size in arguments.sizes or sized(arguments, smallest=[1e4], quick=[1e5], whole=[1e6, 1e7])]
    kinds = arguments.kinds or sized(arguments, smallest=["secure"], quick=["plain", "secure"], whole=[*KINDS, FLOWER])
    rounds = arguments.rounds or sized(arguments, smallest=2, quick=3, whole=3)
    cells = []
    for line in lines:
        say(f"starting a server and {CLIENTS} sites on {line}")
        own = [kind for kind in kinds if kind != FLOWER]
        if own or line == arguments.cut:
            with sites_on(line) as sites:
                cells += [sites.run(kind, size, rounds=rounds) for size in sizes for kind in own]
                if line == arguments.cut:
                    cells.append(sites.run("secure", sizes[0], rounds=2, cut=CUT_SECONDS))
        if FLOWER in kinds:
            cells += flower_on(line, sizes, rounds=rounds)
    return report(cells)


def report(cells: Sequence[Cell]) -> Report:
    """Ratios of what ended well, and the table."""
    header = ("line", "d", "kind", "MB", "limit s", "seconds", "first over limit", "later", "with headers and trips")
    failures = [
        f"{cell.line}, {_power(cell.parameters)}, {cell.kind}: {cell.failure}" for cell in cells if cell.failure
    ]
    return Report(
        benchmark="wan",
        figures=(*(figure for cell in cells for figure in cell.figures()), *_over_ours(cells)),
        tables=(Table(title=f"Seconds a round, {CLIENTS} sites", header=header, rows=tuple(c.row() for c in cells)),),
        notes=(
            "each site in a namespace on a line of its own, TLS on; the server's has 1 Gbit/s; benchmarks/apps/noop",
            f"from {LOSSY_TRIP * 1e3:.0f} ms on lines lose {LOSS:.0%} of packets; a queue holds {QUEUE_SECONDS:g} s",
            "limit: bytes of a round down and up at the speed of the line; of the first the model and the last update",
            f"with headers and trips: over a limit with the {HEADERS - 1:.1%} that TCP, IP and TLS add, and the round "
            f"trips that wait for one another, {PLAIN_TRIPS} of a plain round and {SECURE_TRIPS} of a secure one",
            f"congestion control: {_congestion_control()}; load of the machine at the end: {os.getloadavg()[1]:.0f}",
            "flower: plain, its rounds from the median site's beginning of work to the next",
            *failures,
        ),
    )


def _over_ours(cells: Sequence[Cell]) -> list[Figure]:
    """Flower's seconds over our own, both plain."""
    medians = {(one.line, one.parameters, one.kind): median(one.seconds[1:]) for one in cells if len(one.seconds) > 1}
    return [
        Figure(
            name=f"flower_over_ours_plain_{_power(size)}_{line.replace(',', '_')}",
            value=seconds / ours,
            aim=FLOWER_AIM,
            at_least=True,
        )
        for (line, size, kind), seconds in medians.items()
        if kind == FLOWER and (ours := medians.get((line, size, "plain")))
    ]


def _congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()


def _power(number: int) -> str:
    """1e6 for a million."""
    return f"{number:.0e}".replace("e+0", "e")


def main() -> int:
    """The command line."""
    options = parser("Rounds over slow lines, over the limit of the line.")
    options.add_argument("--lines", nargs="+", metavar="LINE", help="as of fedcore check --line")
    options.add_argument("--sizes", type=float, nargs="+", metavar="D", help="models (default 1e6 1e7)")
    options.add_argument("--kinds", nargs="+", choices=[*KINDS, FLOWER], help="default: all")
    options.add_argument("--rounds", type=int, help="of each run, the first included (default 3)")
    options.add_argument(
        "--cut", default="", metavar="LINE", help="on which of the lines a site is cut off for a minute"
    )
    return run(measure, options.parse_args())


if __name__ == "__main__":
    sys.exit(main())
