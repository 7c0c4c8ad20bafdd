"""A round of fedcore next to one of Flower and of NVIDIA FLARE: the same app, sizes and clients in one run.

    python benchmarks/peers.py [--quick] [--json] [--only flower]

Each framework's server and clients are processes of their own on this machine, with TLS between them, and its settings
are the best that its documentation gives (the notes of the report say which). The frameworks take turns. One that
fails or is missing is named with the last lines that it said, and the others still count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.peers_arms import PLAIN, SECURE, Job, Measured, Opener, flower, ours
from benchmarks.peers_nvflare import nvflare
from fedcore.errors import EnvironmentFailure

CLIENTS, QUICK_CLIENTS = 8, 2
QUICK_PARAMETERS = 10**5
OURS, FLOWER, NVFLARE = "ours", "flower", "nvflare"
OPENERS: Mapping[str, Opener] = {OURS: ours, FLOWER: flower, NVFLARE: nvflare}
MB, MIB = 1e6, float(1 << 20)
# The least that a peer's seconds may be of ours.
PEER_AIM = 1.0
ROUNDS, SLOW_ROUNDS = 5, 2
# A round of these takes a minute or more: they run once, over two rounds, of which one is measured.
SLOW = frozenset({(FLOWER, SECURE, 10**6), (FLOWER, SECURE, 10**7), (NVFLARE, SECURE, 10**6)})
# Encrypted, this one's update is some hundred times as large as our upload: hours, and gigabytes a client.
LEFT_OUT = frozenset({(NVFLARE, SECURE, 10**7)})

NOTES = (
    "A round lasts from the median client's beginning of its work to the same in the next round. Bytes are those of "
    "the TLS connections between clients and server, counted by a relay in between, with all requests in them: up of "
    "the same rounds, down of the whole run, over the number of its rounds. Memory is the proportional set size of the "
    "server's processes, and of one client's, at its highest of all samples.",
    "The same in all: the update (one constant added), the sizes, one thread for each process's arithmetic, the "
    "machine, TLS to the server, the relay. Not the same: our clients and FLARE's prove who they are (signed requests; "
    "mutual TLS), Flower's SuperNodes are let in unknown, its default. Flower starts a process for each message, ours "
    "and FLARE's stay. Our server writes every upload to the disk before it acknowledges it; Flower's holds its state "
    "in memory, its default.",
    "Flower: SuperLink and SuperNodes with TLS (flower.ai/docs/framework/how-to-enable-tls-connections.html), a "
    "subprocess for each task; waiting tasks are looked for every 0.2 s (FLWR_SUPEREXEC_TASK_POLL_INTERVAL) and not "
    "every second. Secured: SecAggPlusWorkflow with shares for all and half of them as the threshold, its own ranges, "
    "max_weight 1 (flower.ai/docs/framework/ref-api/flwr.server.workflow.SecAggPlusWorkflow.html).",
    "NVIDIA FLARE: provisioned (mutual TLS, its default transport), FedAvg over numpy arrays, with the script in the "
    "job's process (nvflare.readthedocs.io/en/2.7/programming_guide/execution_api_type/client_api.html). Secured: "
    "FedAvgRecipeWithHE, whose server adds up ciphertexts of CKKS; its clients share one secret key, which ours and "
    "Flower's do not.",
    "What is secured is not the same in the three. Against a server that lies about who dropped out, ours alone holds "
    "(docs/threat-model.md).",
)


@dataclass(slots=True, kw_only=True)
class Cell:
    """All runs of one framework, kind and size. failure: why there is no more, for people."""

    parameters: int
    runs: list[Measured] = field(default_factory=list)
    failure: str = ""

    def seconds(self) -> float:
        """Median of all rounds."""
        return median(each for one in self.runs for each in one.seconds)

    def row(self, arm: str, kind: str) -> tuple[str, ...]:
        """For the table."""
        head = (arm, kind, _power(self.parameters))
        if not self.runs:
            return (*head, *["-"] * 7)
        rounds = [each for one in self.runs for each in one.seconds]
        up, down = (median(getattr(one, name) for one in self.runs) / MB for name in ("up", "down"))
        server, client = (max(getattr(one, name) for one in self.runs) / MIB for name in ("server_peak", "client_peak"))
        return (
            *head, str(len(rounds)), f"{median(rounds):.2f}", f"{min(rounds):.2f} to {max(rounds):.2f}",
            f"{up:.2f}", f"{down:.2f}", f"{server:.0f}", f"{client:.0f}",
        )  # fmt: skip


Cells = dict[tuple[str, str, int], Cell]


def main() -> int:
    """The command line."""
    options = parser("A round next to Flower and NVIDIA FLARE, plain and secured.")
    options.add_argument("--only", action="append", choices=tuple(OPENERS), help="a framework next to ours; repeatable")
    options.add_argument("--clients", type=int, help=f"client processes (default {CLIENTS})")
    options.add_argument("--parameters", type=float, action="append", help="size of the model (default 1e6 and 1e7)")
    options.add_argument("--rounds", type=int, help=f"measured rounds of a run and one more (default {ROUNDS})")
    options.add_argument("--repeats", type=int, default=1, help="how often each framework has its turn (default 1)")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All frameworks, one after the other, and each again in the opposite order."""
    peers = arguments.only or sized(arguments, smallest=[], quick=[FLOWER], whole=[FLOWER, NVFLARE])
    names = [OURS, *(name for name in peers if name != OURS)]
    sizes = [int(size) for size in arguments.parameters or ()]
    sizes = sizes or sized(arguments, smallest=[10**3], quick=[QUICK_PARAMETERS], whole=[10**6, 10**7])
    kinds = (PLAIN,) if arguments.quick else (PLAIN, SECURE)
    clients = arguments.clients or sized(arguments, smallest=2, quick=QUICK_CLIENTS, whole=CLIENTS)
    rounds = arguments.rounds or sized(arguments, smallest=1, quick=3, whole=ROUNDS)
    cells: Cells = {(name, kind, size): Cell(parameters=size) for name in names for size in sizes for kind in kinds}
    for repeat in range(arguments.repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            _turn(name, cells, clients=clients, rounds=rounds, again=repeat > 0)
    return report(cells, clients=clients)


def _turn(name: str, cells: Cells, *, clients: int, rounds: int, again: bool) -> None:
    """Start one framework, run each of its cells, and end it. What fails is noted, and nothing is raised."""
    todo = {key: cell for key, cell in cells.items() if key[0] == name and not cell.failure}
    for key in LEFT_OUT & todo.keys():
        cells[key].failure = "left out: it would take hours"
    todo = {key: cell for key, cell in todo.items() if key not in LEFT_OUT and not (again and key in SLOW)}
    with tempfile.TemporaryDirectory(prefix="fedcore-peers-", ignore_cleanup_errors=True) as folder:
        try:
            say(f"starting {name} with {clients} clients")
            with OPENERS[name](Path(folder), clients=clients) as arm:
                for key, cell in todo.items():
                    slow = SLOW_ROUNDS if key in SLOW else rounds
                    job = Job(kind=key[1], parameters=key[2], rounds=slow, clients=clients)
                    started = time.monotonic()
                    try:
                        cell.runs.append(arm.run(job))
                    except EnvironmentFailure as error:
                        cell.failure = str(error)
                    _say_result(key, cell, time.monotonic() - started)
        except EnvironmentFailure as error:
            say(f"{name}: {error}")
            for cell in todo.values():
                cell.failure = cell.failure or str(error)


def _say_result(key: tuple[str, str, int], cell: Cell, seconds: float) -> None:
    head = f"{key[0]}, {key[1]}, d = {_power(key[2])}"
    if cell.failure:
        say(f"{head}: failed after {seconds:.0f} s: {cell.failure}")
    else:
        rounds = ", ".join(f"{each:.2f}" for each in cell.runs[-1].seconds)
        say(f"{head}: {rounds} s a round; the run took {seconds:.0f} s")


def report(cells: Mapping[tuple[str, str, int], Cell], *, clients: int) -> Report:
    """Figures for what both sides of a ratio were measured for, and the table of all."""
    figures = []
    for (name, kind, size), cell in cells.items():
        own = cells[OURS, kind, size]
        if name != OURS and cell.runs and own.runs:
            ratio = cell.seconds() / own.seconds()
            figures.append(
                Figure(name=f"{name}_over_ours_{kind}_{_power(size)}", value=ratio, aim=PEER_AIM, at_least=True)
            )
    header = (
        "framework", "kind", "d", "rounds", "s a round", "fastest to slowest", "up MB", "down MB", "server MiB",
        "client MiB",
    )  # fmt: skip
    rows = tuple(cell.row(name, kind) for (name, kind, _), cell in cells.items())
    title = f"{clients} clients; bytes of one client in a round"
    return Report(
        benchmark="peers",
        figures=tuple(figures),
        tables=(Table(title=title, header=header, rows=rows), *_ratios(cells)),
        notes=(*NOTES, *_failures(cells)),
    )


def _ratios(cells: Mapping[tuple[str, str, int], Cell]) -> Sequence[Table]:
    """Everything of the peers over ours."""
    rows = []
    for (name, kind, size), cell in cells.items():
        own = cells[OURS, kind, size]
        if name != OURS and cell.runs and own.runs:
            pairs = [
                (median(getattr(one, part) for one in cell.runs), median(getattr(one, part) for one in own.runs))
                for part in ("up", "down", "server_peak", "client_peak")
            ]
            ratios = [cell.seconds() / own.seconds(), *(theirs / mine for theirs, mine in pairs)]
            rows.append((name, kind, _power(size), *(f"{ratio:.2f}" for ratio in ratios)))
    header = ("framework over ours", "kind", "d", "seconds", "up", "down", "server memory", "client memory")
    return [Table(title="Ratios", header=header, rows=tuple(rows))] if rows else []


def _failures(cells: Mapping[tuple[str, str, int], Cell]) -> Sequence[str]:
    """One note for each framework and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (name, kind, size), cell in cells.items():
        if cell.failure:
            reasons.setdefault((name, cell.failure), []).append(f"{kind} {_power(size)}")
    return [
        f"No figure for {name} {', '.join(which)}: {' / '.join(reason.splitlines())}"
        for (name, reason), which in reasons.items()
    ]


def _power(parameters: int) -> str:
    """1e6 for a million."""
    return f"{parameters:.0e}".replace("e+0", "e")


if __name__ == "__main__":
    raise SystemExit(main())
