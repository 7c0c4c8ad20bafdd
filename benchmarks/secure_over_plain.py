"""Whole runs with secure aggregation over the same without: wall time, processor seconds, bytes of a client.

    python benchmarks/secure_over_plain.py [--before CHECKOUT] [--quick] [--json]

Two apps: the digits example, and one that trains nothing on a model of 1e6 parameters, so that what is left is the
federation itself. Each run is a process of its own (`fedcore simulate --engine inline`, four clients), so its processor
seconds hold imports, too; `in exchanges` are the seconds of the run's exchanges alone. `--before` names a checkout of
another commit, whose runs take turns with these: what else the machine does then meets both alike. The ratios are
medians over pairs that ran one after the other; their aim is to be no larger than there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, commit_of, parser, quiet_environment, run, say, sized

ROOT: Final = Path(__file__).resolve().parents[1]
CLIENTS: Final = 4
APPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "digits": ("examples/digits", ()),
    "1e6 parameters": ("benchmarks/apps/noop", ("--run-config", "num-server-rounds=10")),
}
"""Folder of each app, and what its runs are started with."""
QUANTITIES: Final = ("wall", "processor", "in exchanges", "bytes")
MODES: Final = ("secure", "plain")
OWN: Final = "this commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run took: seconds, seconds of the processor, seconds of its exchanges, and bytes of one client."""

    wall: float
    processor: float
    exchanges: float
    bytes: float

    def values(self) -> tuple[float, ...]:
        """In the order of QUANTITIES."""
        return (self.wall, self.processor, self.exchanges, self.bytes)


def main() -> int:
    """The command line."""
    options = parser("Whole secure runs over plain ones: wall time, processor seconds, bytes.")
    options.add_argument("--before", type=Path, help="checkout of another commit, to take turns with")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Every app in every checkout in both modes, as many times as asked."""
    trees = {OWN: ROOT}
    if arguments.before is not None:
        before = arguments.before.resolve()
        trees[commit_of(before) or str(before)] = before
    repetitions = sized(arguments, smallest=1, quick=1, whole=4)
    figures, tables = list[Figure](), list[Table]()
    for app in APPS:
        costs = {(tree, mode): list[Cost]() for tree in trees for mode in MODES}
        for number in range(repetitions):
            for tree, folder in trees.items():
                for mode in MODES:
                    costs[tree, mode].append(simulate(folder, app, mode))
            say(f"{app}: {number + 1} of {repetitions}")
        tables.append(_table(app, trees, costs))
        now, earlier = (ratios(costs[tree, "secure"], costs[tree, "plain"]) for tree in (OWN, list(trees)[-1]))
        figures += [
            Figure(name=f"{app}_{quantity}".replace(" ", "_"), value=value, aim=aim)
            for quantity, value, aim in zip(QUANTITIES, now, earlier, strict=True)
        ]
    return Report(benchmark="secure_over_plain", figures=tuple(figures), tables=tuple(tables))


def simulate(tree: Path, app: str, mode: str) -> Cost:
    """One run of one app by the code of one checkout."""
    folder, words = APPS[app]
    with tempfile.TemporaryDirectory() as out:
        command = [
            *(sys.executable, "-m", "fedcore", "simulate", str(ROOT / folder), "--engine", "inline"),
            *("--clients", str(CLIENTS), "--aggregation", mode, "--out", f"{out}/model.safetensors", "--json", *words),
        ]
        environment = {**os.environ, **quiet_environment(), "PYTHONPATH": str(tree)}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(command, cwd=out, env=environment, capture_output=True, text=True, check=True)
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = json.loads(done.stdout[("\n" + done.stdout).rindex("\n{") :])
    return Cost(
        wall=wall,
        processor=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        exchanges=summary["seconds"],
        bytes=summary["bytes_up_per_client"] + summary["bytes_down_per_client"],
    )


def ratios(secure: Sequence[Cost], plain: Sequence[Cost]) -> tuple[float, ...]:
    """Secure over plain, pair by pair, and the median of that, for each quantity."""
    pairs = list(zip(secure, plain, strict=True))
    each = [[mine / other for mine, other in zip(one.values(), two.values(), strict=True)] for one, two in pairs]
    return tuple(median(column) for column in zip(*each, strict=True))


def _table(app: str, trees: Mapping[str, Path], costs: Mapping[tuple[str, str], Sequence[Cost]]) -> Table:
    rows = []
    for tree in trees:
        for mode in MODES:
            columns = zip(*(one.values() for one in costs[tree, mode]), strict=True)
            rows.append((tree, mode, *(f"{median(column):,.2f}" for column in columns)))
        ratio = ratios(costs[tree, "secure"], costs[tree, "plain"])
        rows.append((tree, "secure over plain", *(f"{value:.3f}" for value in ratio)))
    return Table(title=f"{app}, {CLIENTS} clients: medians", header=("commit", "run", *QUANTITIES), rows=tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
