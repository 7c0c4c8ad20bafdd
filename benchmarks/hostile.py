"""How a lying server fares: thousands of generated schedules against honest clients, and against planted faults.

    python benchmarks/hostile.py [--schedules N] [--seed S] [--quick] [--json]

Four in five schedules are of a server that tells any lie at any step to clients of one or two rounds; after each, a
solver looks for sums of updates that it could strip of their masks although the round does not allow it. The others are
of an honest server among clients that drop out, contradict themselves and send wrong shares; each must end with the
exact sum or a named failure. Then each fault of `tests/support/faults.py` is planted, and must be found. The same seed
gives the same schedules.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from hypothesis.stateful import RuleBasedStateMachine

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from tests.support.faults import FAULTS, SERVER_FAULTS
from tests.support.honest_machine import HonestServer
from tests.support.hostile import Broken, Tally
from tests.support.hostile_machine import LyingServer
from tests.support.schedules import ATTEMPTS, BUDGET, run_schedules, verdict_on, verdict_on_server

SCHEDULES = 5000
SEED = 7
BATCH = 250
"""Schedules under one seed: hypothesis runs longer batches no further apart, and one that fails ends its batch."""
LYING_SHARE = 0.8


@dataclass(slots=True, kw_only=True)
class Outcome:
    """All batches of one machine. `broken` are the verdicts of batches that failed."""

    tally: Tally
    broken: list[str]
    seconds: float


def main() -> int:
    """The command line."""
    options = parser("Generated schedules of a lying server, and of an honest one among clients that lie.")
    options.add_argument("--schedules", type=int, default=SCHEDULES, help=f"of both kinds (default {SCHEDULES})")
    options.add_argument("--seed", type=int, default=SEED, help=f"first of the seeds (default {SEED})")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All schedules, then all faults."""
    schedules = sized(arguments, smallest=10, quick=400, whole=arguments.schedules)
    lying = run_batches(LyingServer, round(schedules * LYING_SHARE), arguments.seed)
    honest = run_batches(HonestServer, round(schedules * (1 - LYING_SHARE)), arguments.seed)
    faults = {} if arguments.quick else find_faults(arguments.seed)
    return report(lying, honest, faults, seed=arguments.seed)


def run_batches(machine: type[RuleBasedStateMachine], schedules: int, seed: int) -> Outcome:
    """That many schedules, in batches under consecutive seeds."""
    total = Outcome(tally=Tally(), broken=[], seconds=0.0)
    for start in range(0, schedules, BATCH):
        began = perf_counter()
        try:
            tally = run_schedules(machine, schedules=min(BATCH, schedules - start), start=seed + start // BATCH)
        except Broken as broken:
            say(
                f"{machine.__name__}, seed {seed + start // BATCH}: {broken}\n"
                + "\n".join(getattr(broken, "__notes__", ()))
            )
            total.broken.append(broken.verdict)
            continue
        finally:
            total.seconds += perf_counter() - began
        total.tally.add(tally)
        say(f"{machine.__name__}: {total.tally.schedules} schedules in {total.seconds:.0f} s")
    return total


def find_faults(seed: int) -> dict[str, bool]:
    """Whether each planted fault is found by the promises that are checked, and by the solver if it costs an update."""
    found: dict[str, bool] = {}
    for name, fault in FAULTS.items():
        say(f"planting: {name}")
        found[name] = verdict_on(fault, start=seed) in fault.verdicts
        if fault.costs_an_update:
            found[f"{name}, by the solver alone"] = verdict_on(fault, start=seed, strict=False) == "recovered"
    for name, (server_class, verdicts) in SERVER_FAULTS.items():
        say(f"planting: {name}")
        found[name] = verdict_on_server(server_class, start=seed) in verdicts
    return found


def report(lying: Outcome, honest: Outcome, faults: Mapping[str, bool], *, seed: int) -> Report:
    """Figures and tables."""
    figures = [
        Figure(name="lying_server_schedules_broken", value=len(lying.broken), unit="batches", aim=0),
        Figure(name="honest_server_schedules_broken", value=len(honest.broken), unit="batches", aim=0),
        Figure(
            name="honest_completions_over_rounds",
            value=lying.tally.outcomes["honest completions"] / max(1, lying.tally.rounds),
            aim=0.1,
            at_least=True,
        ),
    ]
    if faults:
        value = sum(faults.values()) / len(faults)
        figures.append(Figure(name="planted_faults_found", value=value, aim=1.0, at_least=True))
    lies = lying.tally.lies.total() + honest.tally.lies.total()
    missed = [name for name, found in faults.items() if not found]
    return Report(
        benchmark="hostile",
        figures=tuple(figures),
        tables=(
            _overview(lying, honest),
            _counted("Lies of the server", "lie", lying.tally.lies),
            _counted("Refusals of the clients, by check", "check", lying.tally.refusals),
            _counted("Lies of clients", "lie", honest.tally.lies),
            _counted("Refusals of the server, and failures of rounds", "name", honest.tally.refusals),
        ),
        notes=(
            f"seed {seed} for the first batch of {BATCH} schedules, one more for each batch; {lies} lies in all",
            "an honest completion is a round under a lying server that ends with all shares out and the sum of all: "
            "what was refused on the way did no harm. The others ended where clients refused to go on",
            f"searches for planted faults: {len(faults)}, each of up to {ATTEMPTS} times {BUDGET} schedules; in vain: "
            f"{', '.join(missed) or 'none'}",
        ),
    )


def _overview(lying: Outcome, honest: Outcome) -> Table:
    rows = (
        ("schedules", *(str(one.tally.schedules) for one in (lying, honest))),
        ("rounds", *(str(one.tally.rounds) for one in (lying, honest))),
        ("messages accepted", *(str(one.tally.steps.total()) for one in (lying, honest))),
        ("lies", *(str(one.tally.lies.total()) for one in (lying, honest))),
        ("refusals", *(str(one.tally.refusals.total()) for one in (lying, honest))),
        ("sums the server could strip", str(lying.tally.outcomes["sums the quorum allows"]), ""),
        ("of which smaller than the quorum allows", "0" if not lying.broken else "see above", ""),
        ("honest completions", str(lying.tally.outcomes["honest completions"]), ""),
        ("exact sums", "", str(honest.tally.outcomes["exact sum"])),
        ("named failures", "", str(honest.tally.outcomes["named failure"])),
        ("seconds", f"{lying.seconds:.0f}", f"{honest.seconds:.0f}"),
    )
    return Table(title="Schedules", header=("", "lying server", "honest server"), rows=rows)


def _counted(title: str, what: str, counts: Counter[str]) -> Table:
    rows = tuple((str(name), str(number)) for name, number in counts.most_common())
    return Table(title=title, header=(what, "times"), rows=rows)


if __name__ == "__main__":
    sys.exit(main())
