r"""The simulation next to its peers: Flower's own, pfl-research, and a bare loop over the same clients.

    python benchmarks/simulation.py [--quick] [--json] [--parts flower loop] [--pfl FOLDER]

Each arm is a process (`simulation_arm.py`) that simulates the same model, clients and rounds, on random numbers. Arms
of one part take turns, round by round, and those that wait are stopped; so all meet the same machine, and what is
compared are the rounds of one turn. A first round lasts from the start of its process to the round's end, imports and
workers included, and each arm has the machine to itself for it. Nobody tests a model. `flower`, `thousands`: next to
Flower's simulation of the same app, which has one processor for each of its actors, so that all processors work.
`loop`: next to training and averaging alone. `secure`: a secure sum over 10,000 clients.

pfl-research is no dependency; for `pfl` it is installed into a folder of its own, which --pfl names:

    pip install --no-deps --target FOLDER pfl multiprocess dill dp-accounting prv-accountant absl-py immutabledict \
        mpmath
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import APPS, Figure, Report, Table, parser, run, say, sized
from benchmarks.simulation_turns import Measured, measured_arms, over

NOOP, APP = str(APPS / "noop"), str(APPS / "simulated")
MIB: Final = float(1 << 20)
BARE, ONE_BY_ONE, AT_ONCE, POOL = (
    "bare loop",
    "fedcore inline, one by one",
    "fedcore inline, at once",
    "fedcore process",
)
FLOWER, PLAIN, SECURE, RAY, PFL = "Flower", "fedcore plain", "fedcore secure", "fedcore plain, ray", "pfl-research"
SECURE_CLIENTS, SECURE_PARAMETERS = 10_000, 100_000
FLOOR_SECONDS: Final = 190
"""Processor seconds of the primitives alone (benchmarks/results/decisions.md)."""

Arms = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Found:
    """What the parts found so far."""

    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def main() -> int:
    """The command line."""
    options = parser("The simulation next to Flower's own, pfl-research, and a bare loop over the same clients.")
    options.add_argument("--parts", nargs="+", choices=list(PARTS), help="which parts (default: all; smallest: secure)")
    options.add_argument("--pfl", type=Path, metavar="FOLDER", help="where pfl-research is installed")
    options.add_argument("--turns", type=int, help="rounds of each arm after its first (default 5, quick 2)")
    options.add_argument("--clients", type=int, default=0, help="of the part `secure` (default 10000, quick 200)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # not without ending what is stopped
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All parts, one after the other."""
    found = Found()
    for name in arguments.parts or sized(arguments, smallest=["secure"], quick=list(PARTS), whole=list(PARTS)):
        say(f"{name}:")
        PARTS[name](found, arguments)
    found.notes.append(
        "seconds are medians of rounds that took turns, ratios medians over the turns; memory is that of all processes "
        "of an arm at the end of a round, shared pages counted once"
    )
    return Report(
        benchmark="simulation", figures=tuple(found.figures), tables=tuple(found.tables), notes=tuple(found.notes)
    )


# --- what the arms are told -----------------------------------------------------------------------------------------


def simulated(app: str, clients: int, config: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """A simulation by fedcore; by default plain, in the pool."""
    ways = {"engine": "process", "aggregation": "plain"}
    return {"arm": "fedcore", "app": app, "clients": clients, "config": dict(config), **ways, **options}


def by_flower(app: str, clients: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The same by Flower."""
    return {"arm": "flower", "app": app, "clients": clients, "config": dict(config)}


def fraction(per_round: int, clients: int) -> float:
    """Of the clients, that a round asks so many."""
    return min(1.0, (per_round + 0.5) / clients)


def small_cohort(per_round: int, clients: int) -> dict[str, Any]:
    """Settings by which so few of all clients may make a secure sum (docs/simulation.md)."""
    return {"max-corrupt": round(0.2 * per_round / clients, 6)} if per_round < clients else {}


# --- the parts ------------------------------------------------------------------------------------------------------


def beside_flower(found: Found, arguments: argparse.Namespace) -> None:
    """A large model that nobody trains, and McMahan's 2NN by 10 of 100 clients with 600 examples each."""
    if not _has_flower(found):
        return
    turns = arguments.turns or (2 if arguments.quick else 7)
    config: dict[str, Any] = {"parameters": 1_000_000, "min-nodes": 8}
    arms: Arms = {
        FLOWER: by_flower(NOOP, 8, config),
        PLAIN: simulated(NOOP, 8, config),
        SECURE: simulated(NOOP, 8, config, aggregation="secure"),
    }
    measured = measured_arms(arms, turns)
    value = over(measured[PLAIN], measured[FLOWER])
    found.figures.append(Figure(name="round_over_flower_simulation_untrained", value=value, aim=1.0))
    found.tables.append(rounds_table("8 clients of 1,000,000 parameters that add a constant", measured, FLOWER))
    if arguments.quick:
        found.figures.append(Figure(name="round_over_flower_simulation", value=value, aim=1.0))
        return
    config = {"model": "2nn", "examples": 600, "fraction-train": fraction(10, 100)}
    arms = {
        FLOWER: by_flower(APP, 100, config),
        PLAIN: simulated(APP, 100, config),
        SECURE: simulated(APP, 100, config, aggregation="secure", settings=small_cohort(10, 100)),
    }
    measured = measured_arms(arms, turns)
    found.figures += [
        Figure(name="round_over_flower_simulation", value=over(measured[PLAIN], measured[FLOWER]), aim=1.0),
        Figure(
            name="first_round_over_flower_simulation", value=measured[PLAIN].first / measured[FLOWER].first, aim=1.0
        ),
    ]
    found.tables.append(rounds_table("2NN, 10 of 100 clients, 600 examples each, batches of 10", measured, FLOWER))


def thousands(found: Found, arguments: argparse.Namespace) -> None:
    """100 of 1,000 and of 10,000 clients with 50 examples each, of a model for digits."""
    if arguments.quick or not _has_flower(found):
        return
    turns = arguments.turns or 3
    for clients in (1_000, 10_000):
        config = {"model": "digits", "examples": 50, "fraction-train": fraction(100, clients)}
        secure = simulated(APP, clients, config, aggregation="secure", settings=small_cohort(100, clients))
        arms: dict[str, Mapping[str, Any]] = {
            FLOWER: by_flower(APP, clients, config),
            PLAIN: simulated(APP, clients, config),
            RAY: simulated(APP, clients, config, engine="ray"),
            SECURE: secure,
        }
        measured = measured_arms(arms, turns)
        value = over(measured[PLAIN], measured[FLOWER])
        found.figures.append(Figure(name=f"round_over_flower_simulation_{clients}", value=value, aim=1.0))
        found.tables.append(rounds_table(f"digits, 100 of {clients:,} clients, 50 examples each", measured, FLOWER))


def bare(clients: int, per_round: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The same training without any federation around it, in one process with one thread."""
    config = {"batch-size": 10, "lr": 0.1, **config}
    return {"arm": "bare", "clients": clients, "per_round": per_round, "config": config}


def beside_the_loop(found: Found, arguments: argparse.Namespace) -> None:
    """2NN, which trains one by one, and a model for digits, whose clients pay to be trained at once."""
    turns = arguments.turns or (2 if arguments.quick else 7)
    per_round, clients = (5, 50) if arguments.quick else (10, 100)
    config = {"model": "2nn", "examples": 600, "fraction-train": fraction(per_round, clients)}
    settings = small_cohort(per_round, clients)
    arms: Arms = {
        BARE: bare(clients, per_round, config),
        ONE_BY_ONE: simulated(APP, clients, config, engine="inline", at_once=1),
        "fedcore inline, secure": simulated(
            APP, clients, config, engine="inline", aggregation="secure", settings=settings
        ),
        POOL: simulated(APP, clients, config, at_once=1),
    }
    measured = measured_arms(arms, turns)
    found.figures += [
        Figure(name="round_over_bare_loop", value=over(measured[ONE_BY_ONE], measured[BARE]), aim=1.1),
        Figure(name="training_share", value=measured[ONE_BY_ONE].share(1), aim=0.9, at_least=True),
    ]
    workers = os.cpu_count() or 1
    shares = {
        name: f"{one.share(workers if name == POOL else 1):.2f}" for name, one in measured.items() if name != BARE
    }
    title = f"2NN, {per_round} of {clients} clients, 600 examples each: next to the loop"
    found.tables.append(rounds_table(title, measured, BARE, more=("training, share", shares)))
    config = {**config, "model": "digits"}
    arms = {
        BARE: bare(clients, per_round, config),
        ONE_BY_ONE: simulated(APP, clients, config, engine="inline", at_once=1),
        AT_ONCE: simulated(APP, clients, config, engine="inline"),
    }
    measured = measured_arms(arms, turns)
    value = over(measured[AT_ONCE], measured[BARE])
    found.figures.append(Figure(name="round_at_once_over_bare_loop", value=value, aim=1.0))
    title = f"digits, {per_round} of {clients} clients, 600 examples each: all of a round at once"
    found.tables.append(rounds_table(title, measured, BARE))


def beside_pfl(found: Found, arguments: argparse.Namespace) -> None:
    """pfl-research's CIFAR-10 benchmark: 50 of 1,000 clients, 50 examples each, batches of 10, one epoch of SGD."""
    folder = arguments.pfl
    if folder is None or not (folder / "pfl").is_dir():
        found.notes.append("part pfl was left out: pfl-research is not installed; see --help, and name it with --pfl")
        return
    turns = arguments.turns or (1 if arguments.quick else 3)
    per_round, clients = (10, 100) if arguments.quick else (50, 1000)
    config = {"model": "cifar-cnn", "examples": 50, "fraction-train": fraction(per_round, clients)}
    told = {
        "arm": "pfl",
        "packages": str(folder),
        "clients": clients,
        "per_round": per_round,
        "config": {"batch-size": 10, "lr": 0.1, **config},
    }
    # It has one process on a processor; on a machine that others use, its threads wait for one another.
    peers = {f"{PFL}, {threads} threads": {**told, "threads": threads} for threads in {1, os.cpu_count() or 1}}
    arms: Arms = {
        **peers,
        PLAIN: simulated(APP, clients, config),
        SECURE: simulated(APP, clients, config, aggregation="secure", settings=small_cohort(per_round, clients)),
    }
    measured = measured_arms(arms, turns)
    best = min(peers, key=lambda name: measured[name].wall)
    found.figures.append(Figure(name="round_over_pfl", value=over(measured[PLAIN], measured[best]), aim=1.0))
    title = f"pfl-research's CNN for CIFAR-10, {per_round} of {clients:,} clients, 50 examples each"
    found.tables.append(rounds_table(title, measured, best))


def secure_thousands(found: Found, arguments: argparse.Namespace) -> None:
    """A secure sum over all clients, of whom 5 % drop out: a run's second round, since the first has wider fields."""
    clients = arguments.clients or sized(arguments, smallest=10, quick=200, whole=SECURE_CLIENTS)
    told = simulated(
        NOOP,
        clients,
        {"parameters": SECURE_PARAMETERS, "min-nodes": clients},
        aggregation="secure",
        drop=0.05,
        settings={"min-clients": clients, "field-bits": 21},
    )
    measured = measured_arms({SECURE: told}, arguments.turns or 1)[SECURE]
    found.figures.append(
        Figure(
            name=f"processor_seconds_{clients}_secure",
            value=measured.processor,
            unit="s",
            aim=FLOOR_SECONDS * clients / SECURE_CLIENTS,
        )
    )
    row = (f"{clients:,}", f"{measured.first:.0f}", f"{measured.wall:.0f}", f"{measured.processor:.0f}")
    header = ("clients", "first round s", "round s", "processor s", "MiB")
    title = f"Secure sums over all clients, {SECURE_PARAMETERS:,} parameters of 21 bits, 5 % drop out"
    found.tables.append(Table(title=title, header=header, rows=((*row, f"{measured.memory / MIB:.0f}"),)))


PARTS: Final[Mapping[str, Callable[[Found, argparse.Namespace], None]]] = {
    "flower": beside_flower,
    "thousands": thousands,
    "loop": beside_the_loop,
    "pfl": beside_pfl,
    "secure": secure_thousands,
}


def rounds_table(
    title: str,
    measured: Mapping[str, Measured],
    base: str,
    *,
    more: tuple[str, Mapping[str, str]] | None = None,
) -> Table:
    """A row for each arm. base: the arm that the others' rounds are divided by. more: a column, by arm."""
    header: tuple[str, ...] = ("simulation", "first round s", "round s", f"over {base}", "processor s", "MiB")
    rows: Sequence[tuple[str, ...]] = [
        (
            name,
            f"{one.first:.1f}",
            f"{one.wall:.3f}",
            f"{over(one, measured[base]):.2f}",
            f"{one.processor:.2f}",
            f"{one.memory / MIB:.0f}",
        )
        for name, one in measured.items()
    ]
    if more is not None:
        header = (*header, more[0])
        rows = [(*row, more[1].get(row[0], "")) for row in rows]
    return Table(title=title, header=header, rows=tuple(rows))


def _has_flower(found: Found) -> bool:
    """Whether Flower's simulation can run, which needs Ray; what is left out without it is noted."""
    if find_spec("ray") is not None:
        return True
    note = (
        "parts next to Flower were left out: its simulation needs Ray, which `pip install 'fedcore[simulation]'` brings"
    )
    if note not in found.notes:
        found.notes.append(note)
    return False


if __name__ == "__main__":
    sys.exit(main())
