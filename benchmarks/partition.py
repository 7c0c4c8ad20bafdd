"""A leader that is cut off: for how long does it accept nothing, and is an update lost or doubled?

    python benchmarks/partition.py [--partitions N] [--seed S] [--json]

Two servers over one PostgreSQL, three clients and an operator: all real processes, each in a network namespace of its
own (`relay.py`), as root. In the middle of a secure run packets are lost between the server that leads and the clients,
or between it and everybody; nobody is told. The database is reached by a socket of the file system, which stays. The
line comes back once the run has ended, and the next run has the other server cut off.

Client i adds 4**(i-1) steps of a power of two, which no rounding changes: a run ends with the same bits, whatever
happened to its servers, and an update that was lost or doubled shows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from benchmarks.common import APPS, Figure, Report, Table, parser, quiet_environment, run, say, sized
from benchmarks.relay import Cuts, Node, is_possible, nodes
from fedcore.comparison.local_federation import FEDCORE, run_command
from fedcore.errors import EnvironmentFailure
from fedcore.federation import FederationFolder, Policy, provision
from fedcore.state import ModelState
from fedcore.system.workers.child_processes import ChildProcesses
from tests.support.postgres import Cluster, binaries, cluster

APP: Final = APPS / "chaos"
DATABASE: Final = "partition"
PORT: Final = 8443
SERVERS: Final = 2
CLIENTS: Final = 3
ROUNDS: Final = 6
STEP: Final = 2.0**-10
MEAN: Final = sum(4**place for place in range(CLIENTS)) // CLIENTS
"""Steps that a round adds; a whole number."""
KINDS: Final = ("clients", "everybody")
"""From whom the leader is cut off."""
SETTINGS: Final = {
    "min-clients": CLIENTS, "join-seconds": 60.0, "train-seconds": 120.0, "step-seconds": 120.0,
    "liveness-seconds": 60.0,
}  # fmt: skip
PARTITIONS: Final = 10
SILENCE_SECONDS: Final = 20
RUN_SECONDS: Final = 300.0
"""A run that has not ended by then is one that does not end."""
LATEST_SECONDS: Final = 3.0
"""After the first message of a run its leader is cut off within this time; a run takes longer."""
_STATE: Final = (
    "SELECT (SELECT count(*) FROM receipts), (SELECT url FROM leases WHERE name = 'leader'), "
    "(SELECT count(*) FROM runs WHERE status NOT IN ('waiting', 'running'))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What became of a run whose leader was cut off.

    kind: from whom it was cut off. takeover: seconds until the other server had the lease. silence: seconds until that
    one accepted a message of a client. steps: that the run's model has more than it has to have; nan if it has none.
    """

    kind: str
    takeover: float
    silence: float
    steps: float


@dataclass(slots=True)
class Replicas:
    """A federation with two servers, each on a node of its own, and what was done to it."""

    made: FederationFolder
    group: ChildProcesses
    folder: Path
    database: Cluster
    servers: Sequence[Node]
    sites: Sequence[Node]
    operator: Node
    cuts: Cuts
    done: list[Partition] = field(default_factory=list)

    def state(self) -> tuple[int, str, int]:
        """Messages that were accepted and are still needed, the address of the leader, and the runs that have ended."""
        ((receipts, url, ended),) = self.database.execute(DATABASE, _STATE)
        return receipts, url or "", ended

    def start(self) -> None:
        """Start the servers and the clients; one server leads, and all clients have found it."""
        for number, server in enumerate(self.servers, start=1):
            words = (
                "--federation",
                self.made.folder,
                "--host",
                server.address,
                "--data-dir",
                self.folder / f"{number}",
            )
            self.group.start(f"server-{number}", [*server.command(), *FEDCORE, "server", *words])
        for number, (site, kit) in enumerate(zip(self.sites, self.made.clients, strict=True), start=1):
            client = ("client", "--kit", kit, "--app", APP, "--node-config", f"number={number} step={STEP}")
            self.group.start(kit.name, [*site.command(), *FEDCORE, *client])
        self._wait_until(lambda: all("connected" in self.group.tail(kit.name) for kit in self.made.clients))

    def partition(self, kind: str) -> Partition:
        """One run, in the middle of which its leader is cut off."""
        receipts, _, ended = self.state()
        out = self.folder / "model.safetensors"
        command = run_command(
            APP,
            self.made.operator,
            out=out,
            run_config={"num-server-rounds": ROUNDS, "min-nodes": CLIENTS, "strategy": "fedavg"},
            settings=SETTINGS,
        )
        out.unlink(missing_ok=True)
        running = self.group.start("run", [*self.operator.command(), *command])
        self._wait_until(lambda: self.state()[0] > receipts)
        time.sleep(random.uniform(0.0, LATEST_SECONDS))
        leader = next(node for node in self.servers if node.address in self.state()[1])
        others = self.sites if kind == "clients" else (*self.sites, self.operator, *self.servers)
        self.cuts.set(leader, others, cut=True)
        try:
            takeover, silence = self._silence(leader)
            self._wait_until(lambda: self.state()[2] > ended and running.poll() is not None)
        except TimeoutError:
            takeover = silence = float("nan")
        finally:
            self.cuts.set(leader, others, cut=False)
        self.done.append(Partition(kind=kind, takeover=takeover, silence=silence, steps=_surplus(out)))
        say(f"{self.done[-1]}")
        return self.done[-1]

    def _silence(self, leader: Node) -> tuple[float, float]:
        """Seconds until the lease is another server's, and until that one has accepted a message."""
        began, takeover = time.monotonic(), 0.0
        receipts, url, _ = self.state()
        while time.monotonic() < began + RUN_SECONDS:
            before = receipts
            receipts, url, _ = self.state()
            if not takeover and leader.address not in url:
                takeover = time.monotonic() - began
            elif takeover and receipts > before:
                return takeover, time.monotonic() - began
            time.sleep(0.05)
        raise TimeoutError

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + RUN_SECONDS
        while not condition():
            self.group.check()
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.1)


def _surplus(model: Path) -> float:
    """Steps that a run's model has more than it has to have."""
    if not model.exists():
        return float("nan")
    digits = np.unique(np.asarray(ModelState.open(model)["digits"]).astype(np.float64))
    return float(max(digits / STEP - ROUNDS * MEAN, key=abs))


def lacks() -> str:
    """What this machine misses; empty if nothing."""
    if not is_possible():
        return "needs network namespaces and TUN devices, as root"
    return "" if binaries() else "needs PostgreSQL"


@contextlib.contextmanager
def federation() -> Iterator[Replicas]:
    """All of it, started."""
    count = SERVERS + CLIENTS + 1
    cuts = Cuts(count)
    with (
        tempfile.TemporaryDirectory(prefix="fedcore-partition-") as name,
        cluster() as database,
        nodes(count, bandwidth=1e9, latency=0.0, cuts=cuts) as (*machines, operator),
        ChildProcesses(Path(name) / "logs", quiet_environment()) as group,
    ):
        folder, servers = Path(name), machines[:SERVERS]
        addresses = [server.address for server in servers]
        made = provision(
            folder / "fed", name="partition", clients=CLIENTS, now=datetime.now(UTC), hosts=addresses, port=PORT,
            policy=Policy.own(CLIENTS, max_releases=100_000, max_exchanges_per_day=1_000_000),
        )  # fmt: skip
        settings = made.server / "server.toml"
        text = settings.read_text().replace('database = ""', f'database = "{database.create(DATABASE)}"')
        settings.write_text(text.replace('objects = ""', f'objects = "{folder / "objects"}"'))
        for kit in (*made.clients, made.operator):
            path = next(kit / one for one in ("client.toml", "operator.toml") if (kit / one).exists())
            several = f"servers = {json.dumps([f'https://{one}:{PORT}' for one in addresses])}\n"
            path.write_text(several + path.read_text().replace(f'server-url = "{made.server_url}"\n', ""))
        here = Replicas(made, group, folder, database, servers, machines[SERVERS:], operator, cuts)
        here.start()
        yield here


def main() -> int:
    """The command line."""
    options = parser("A leader that is cut off from its clients, or from everybody, and reaches its database.")
    options.add_argument("--partitions", type=int, default=PARTITIONS, help=f"of either kind (default {PARTITIONS})")
    options.add_argument("--seed", type=int, default=1, help="of the instants (default 1)")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Runs one after the other, in each of which the leader is cut off once."""
    if reason := lacks():
        raise EnvironmentFailure(f"this benchmark {reason}")
    random.seed(arguments.seed)
    number = sized(arguments, smallest=1, quick=2, whole=2 * arguments.partitions)
    with federation() as here:
        for index in range(number):
            here.partition(KINDS[index % len(KINDS)])
    return report(here.done)


def report(done: Sequence[Partition]) -> Report:
    """The figures, and a row for each kind."""
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in done)]
    of = {kind: [one for one in done if one.kind == kind] for kind in kinds}
    counts = {
        "lost": sum(one.steps < 0 for one in done),
        "doubled": sum(one.steps > 0 for one in done),
        "other_bits": sum(one.steps != 0 for one in done),
        "unfinished": sum(one.silence != one.silence or one.steps != one.steps for one in done),
    }
    figures = [
        Figure(name="partitions", value=len(done), unit="count", aim=2 * PARTITIONS, at_least=True),
        *(Figure(name=name, value=value, unit="count", aim=0) for name, value in counts.items()),
        *(
            Figure(
                name=f"longest_silence_s_{kind}",
                value=max(one.silence for one in of[kind]),
                unit="seconds",
                aim=SILENCE_SECONDS,
            )
            for kind in kinds
        ),
    ]
    rows = [(kind, str(len(of[kind])), *(f"{value:.1f}" for value in _spread(of[kind]))) for kind in kinds]
    header = ("cut off from", "runs", "takeover s", "longest", "silence s", "longest")
    return Report(
        benchmark="partition",
        figures=tuple(figures),
        tables=(Table(title="From the cut on: medians, and the longest", header=header, rows=tuple(rows)),),
        notes=(
            "takeover: until the other server has the lease; silence: until that one has accepted a message of a "
            "client, for which it starts the ServerApp first",
            f"each run has {ROUNDS} rounds; its model has to have the bits of a run that nobody disturbed",
        ),
    )


def _spread(done: Sequence[Partition]) -> Iterator[float]:
    for values in ([one.takeover for one in done], [one.silence for one in done]):
        yield float(np.median(values))
        yield max(values)


if __name__ == "__main__":
    sys.exit(main())
