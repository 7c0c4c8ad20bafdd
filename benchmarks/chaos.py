"""Kills and faults at random instants: is an update lost or doubled, is anybody told two things, does a run not end?

    python benchmarks/chaos.py [--kills N] [--faults N] [--kinds KIND ...] [--runs KIND ...] [--elements N]
        [--database sqlite|postgres|both] [--side-by-side N] [--plant fold-before-commit] [--json]

Clients that speak the real protocol in this process (`chaos_clients.py`), and a real `fedcore server` with its
ServerApp process, killed with SIGKILL and started again at once, until there were so many kills. The kinds of run take
turns (`chaos_runs.py`), and a strategy is drawn for each. Every model shows in its digits which updates are in its sum
(`chaos_digits.py`); the last model of a secure or plain run must have the bits of all others of its strategy, since the
clients here round by draws that follow from the model. With PostgreSQL two servers share the database and one folder of
objects, and the clients know both. --faults has other things happen as well (`chaos_faults.py`): processes freeze,
lines break, disks are full or change bits, clocks jump, servers are upgraded, backups put back. --plant plants a fault,
which must be found.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.chaos_checks import FINDINGS
from benchmarks.chaos_faults import FAULTS, KILLS, KINDS
from benchmarks.chaos_runs import ROUNDS, RUNS
from benchmarks.chaos_sites import Limits, Site, disturbed
from benchmarks.common import Figure, Report, Table, keep, parser, run, sized

DISTURBANCES = 500
"""Kills and faults with each database that a result should rest on."""
SILENCE_SECONDS = 20
MOST_NOTES = 40


def main() -> int:
    """The command line."""
    options = parser("Servers killed and hurt at random instants, while clients train.")
    options.add_argument("--kills", type=int, default=20, help="with each database (default 20)")
    options.add_argument("--database", choices=("sqlite", "postgres", "both"), default="sqlite")
    options.add_argument("--minutes", type=float, default=float("inf"), help="at the most")
    options.add_argument("--app-share", type=float, default=0.15, help="of the kills that hit the ServerApp's process")
    options.add_argument("--faults", type=int, default=0, help="other than kills, with each database (default 0)")
    options.add_argument("--kinds", nargs="+", choices=FAULTS, default=list(FAULTS), help="of them (default all)")
    options.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="kinds of run (default all)")
    options.add_argument("--side-by-side", type=int, default=1, help="federations with each database (default 1)")
    options.add_argument("--elements", type=int, default=64, help="of the model (default 64)")
    options.add_argument("--plant", choices=("fold-before-commit",), default="", help="a fault that has to be found")
    options.add_argument("--seed", type=int, default=1, help="of the instants (default 1)")
    options.add_argument("--folder", type=Path, help="where everything is kept; default: nowhere")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All federations at the same time; after each run the report so far is kept."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    random.seed(arguments.seed)
    databases = ("sqlite", "postgres") if arguments.database == "both" else (arguments.database,)
    began, sites = time.monotonic(), list[Site]()

    def done(site: Site) -> None:
        if site not in sites:
            sites.append(site)
        keep(report(sites, began, planted=bool(arguments.plant)), arguments)

    with tempfile.TemporaryDirectory(prefix="fedcore-chaos-") as temporary:
        asyncio.run(_all(arguments, databases, arguments.folder or Path(temporary), done))
    return report(sites, began, planted=bool(arguments.plant))


async def _all(
    arguments: argparse.Namespace, databases: Sequence[str], folder: Path, done: Callable[[Site], None]
) -> None:
    reference: dict[tuple[str, str], bytes] = {}
    async with asyncio.TaskGroup() as group:
        for database in databases:
            limits = Limits(
                kills=sized(arguments, smallest=1, quick=4, whole=arguments.kills),
                faults=arguments.faults,
                deadline=time.monotonic() + 60 * arguments.minutes,
                app_share=arguments.app_share,
                kinds=tuple(arguments.kinds),
                runs=sized(arguments, smallest=("secure",), quick=tuple(RUNS), whole=tuple(arguments.runs)),
                rounds=sized(arguments, smallest=1, quick=ROUNDS, whole=ROUNDS),
                elements=arguments.elements,
                plant=arguments.plant,
            )
            for number in range(arguments.side_by_side):
                group.create_task(disturbed(folder / f"{database}-{number}", database, limits, reference, done))


def report(sites: Sequence[Site], began: float, *, planted: bool) -> Report:
    """The figures of each database, and what lies behind them by kind of run and kind of fault."""
    figures: list[Figure] = []
    databases = sorted({site.database for site in sites}, reverse=True)
    for database in databases:
        figures += _figures([site for site in sites if site.database == database], database, planted=planted)
    total = sum(site.target.counts.total() for site in sites)
    figures.append(
        Figure(name="disturbances", value=total, unit="count", aim=DISTURBANCES * len(databases), at_least=True)
    )
    findings = [
        f"{site.database}, {kind}: {text}"
        for site in sites
        for kind, verdict in site.verdicts.items()
        for text in verdict.findings
    ]
    return Report(
        benchmark="chaos",
        figures=tuple(figures),
        tables=(_by_runs(sites, databases), _by_kinds(sites, databases)),
        notes=(
            f"{len(sites)} federations next to each other, {(time.monotonic() - began) / 60:.0f} minutes",
            "given up: runs that ended by name, as they may, since a server was killed twice before they came any "
            "further, or since a backup was put back",
            "silence: from the beginning of a fault until the first message that was accepted after its end, or, if "
            "it is longer, between two messages in that time; it holds the fault itself (frozen up to 15 s, storage "
            "and clocks up to 12 s, lines up to 8 s), and the restart of all servers, by an upgrade for one",
            *findings[:MOST_NOTES],
        ),
    )


def _figures(sites: Sequence[Site], database: str, *, planted: bool) -> list[Figure]:
    counts = Counter[str]()
    for site in sites:
        for verdict in site.verdicts.values():
            counts.update(verdict.counts)
    silence = _silence(sites)
    kills, faults = (sum(each) for each in zip(*((one.target.kills, one.target.faults) for one in sites), strict=True))
    figures = [Figure(name=f"kills_{database}", value=kills, unit="count", aim=100, at_least=True)]
    if faults:
        figures.append(Figure(name=f"faults_{database}", value=faults, unit="count", aim=400, at_least=True))
    if planted:
        found = float(counts.total() > 0)
        return [*figures, Figure(name=f"planted_fault_found_{database}", value=found, aim=1, at_least=True)]
    figures += [Figure(name=f"{name}_{database}", value=counts[name], unit="count", aim=0) for name in FINDINGS]
    return figures + [
        Figure(name=f"longest_silence_s_{kind}_{database}", value=silence[kind], unit="seconds", aim=SILENCE_SECONDS)
        for kind in KINDS
        if kind in silence
    ]


def _silence(sites: Sequence[Site]) -> dict[str, float]:
    """By kind, the longest."""
    longest: dict[str, float] = {}
    for site in sites:
        for kind, seconds in site.target.silence.items():
            longest[kind] = max(longest.get(kind, 0.0), seconds)
    return longest


def _by_runs(sites: Sequence[Site], databases: Sequence[str]) -> Table:
    rows = []
    for database in databases:
        for kind in RUNS:
            chosen = [site for site in sites if site.database == database]
            counts, other = Counter[str](), Counter[str]()
            for site in chosen:
                verdict = site.verdicts[kind]
                counts.update(verdict.counts)
                other.update(runs=site.number[kind], given_up=verdict.given_up)
                other.update(exchanges=verdict.exchanges, failed=verdict.failed_exchanges)
                for (runs, what), number in site.target.counts.items():
                    if runs == kind:
                        other["kills" if what in KILLS else "faults"] += number
            if other["runs"]:
                done = [other[name] for name in ("runs", "kills", "faults", "exchanges", "failed", "given_up")]
                rows.append((f"{database}, {kind}", *map(str, done), *(str(counts[name]) for name in FINDINGS)))
    header = ("runs of", "runs", "kills", "faults", "exchanges", "failed", "given up", *FINDINGS)
    return Table(title="What became of the updates", header=header, rows=tuple(rows))


def _by_kinds(sites: Sequence[Site], databases: Sequence[str]) -> Table:
    rows = []
    for kind in KINDS:
        row = [kind]
        for database in databases:
            chosen = [site for site in sites if site.database == database]
            number = sum(count for site in chosen for (_, what), count in site.target.counts.items() if what == kind)
            silence = _silence(chosen).get(kind)
            row += [str(number) if number else "", "" if silence is None else f"{silence:.1f}"]
        if any(row[1:]):
            rows.append(tuple(row))
    header = tuple(f"{database}, {what}" for database in databases for what in ("number", "longest silence s"))
    return Table(
        title="What was done to the servers, and how long no message came", header=("kind", *header), rows=tuple(rows)
    )


if __name__ == "__main__":
    sys.exit(main())
