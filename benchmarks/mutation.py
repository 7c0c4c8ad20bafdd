"""Whether the tests would notice if a check of the secure aggregation protocol were gone.

    python benchmarks/mutation.py [--quick] [--json] [--only PATTERN] [--list]

Deletes or inverts one check of `fedcore/secagg` at a time (`mutators` tells how), in a copy of the repository, and runs
the tests that reach the changed function until one of them fails. A mutant that no test notices has survived; one on
which the tests hang, or which cannot be imported, is noticed.

mutation_allowed.toml lists the security mutants that no test can kill because they change nothing, each with the
reason. The exit status is 1 if any other security mutant survives.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, say
from benchmarks.mutants import Mutant
from benchmarks.mutation_runs import Baseline, Fate, Outcome, Subject, campaign
from benchmarks.mutators import find_mutants
from fedcore.errors import ConfigurationError

SECAGG = Subject(
    root=Path(__file__).resolve().parents[1],
    package="fedcore/secagg",
    tests=("tests/unit/secagg", "tests/thorough/secagg"),
    copied=("pyproject.toml", "fedcore", "tests"),
)
ALLOWED = Path(__file__).with_name("mutation_allowed.toml")
JOBS = 2
# Of the whole, with what the tests take first; and of the mutants at least, however slow the tests are.
QUICK_SECONDS, QUICK_LEAST = 50.0, 15.0
SAID_EVERY = 50
# All that `--smallest` runs.
SMALLEST_TESTS, SMALLEST_MUTANT = ("tests/unit/secagg/test_secagg_keys.py",), "Secret.__reduce__"

KILLED_AIM = 0.9
SECURITY_AIM = 1.0


def main() -> int:
    """The command line."""
    options = parser("Whether the tests would notice if a check of the protocol were gone.")
    options.add_argument("--only", metavar="PATTERN", default="", help="mutants whose name contains or matches this")
    options.add_argument("--list", action="store_true", help="print the names of the mutants, and run none")
    options.add_argument("--jobs", type=int, default=JOBS, help=f"mutants at a time (default {JOBS})")
    arguments = options.parse_args()
    if arguments.list:
        print("\n".join(map(_listed, _selected(find_mutants(SECAGG.root / SECAGG.package), arguments.only))))
        return 0
    reports: list[Report] = []

    def measured(given: argparse.Namespace) -> Report:
        reports.append(measure(given))
        return reports[-1]

    return run(measured, arguments) or int(not all(report.figures[0].holds for report in reports))


def measure(arguments: argparse.Namespace) -> Report:
    """Run the mutants; with `--quick` as many as there is time for, in an order that favours none."""
    begin = time.monotonic()
    allowed = read_allowed(ALLOWED)
    say("running the tests without any mutant")
    subject = replace(SECAGG, tests=SMALLEST_TESTS) if arguments.smallest else SECAGG
    with campaign(subject, arguments.jobs) as ready:
        every = find_mutants(ready.package)
        mutants = _selected(every, arguments.only or (SMALLEST_MUTANT if arguments.smallest else ""))
        if not mutants:
            raise ConfigurationError(f"no mutant's name contains or matches {arguments.only!r}")
        say(f"{len(ready.baseline.seconds)} tests pass; {len(mutants)} mutants")
        if arguments.quick:
            mutants.sort(key=lambda mutant: hashlib.sha256(mutant.name.encode()).digest())
        limit = max(QUICK_LEAST, QUICK_SECONDS - (time.monotonic() - begin)) if arguments.quick else float("inf")
        outcomes = ready.run(mutants, seconds=limit, heard=_narrator(len(mutants)))
        return report(outcomes, allowed=allowed, every=every, chosen=len(mutants), baseline=ready.baseline)


def read_allowed(path: Path) -> dict[str, str]:
    """Name -> reason of the mutants that may survive; ConfigurationError for an entry without either, or twice."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("allowed", [])
    allowed: dict[str, str] = {}
    for entry in entries:
        if set(entry) != {"name", "reason"} or not entry["reason"] or entry["name"] in allowed:
            raise ConfigurationError(f"{path.name}: every entry has a name of its own and a reason: {entry}")
        allowed[entry["name"]] = entry["reason"]
    return allowed


def report(
    outcomes: Sequence[Outcome],
    *,
    allowed: Mapping[str, str],
    every: Collection[Mutant],
    chosen: int,
    baseline: Baseline,
) -> Report:
    """Figures, counts by file, and the survivors. every: all mutants there are; chosen: how many were to be run."""
    survivors = [outcome for outcome in outcomes if outcome.survived]
    excused = {outcome.mutant.name for outcome in survivors} & set(allowed)
    security = [outcome for outcome in outcomes if outcome.mutant.security and outcome.mutant.name not in excused]
    figures = (
        Figure(name="security_killed_over_total", value=_killed(security), aim=SECURITY_AIM, at_least=True),
        Figure(name="killed_over_total", value=_killed(outcomes), aim=KILLED_AIM, at_least=True),
    )
    notes = [
        f"{len(outcomes)} of {len(every)} mutants were run against {len(baseline.seconds)} tests",
        "security mutants are those of checks that refuse what a peer did, of erasures, of the state, of what enters a "
        "hash or key; the first figure leaves out those that are allowed to survive since they change nothing",
    ]
    if len(outcomes) < chosen:
        notes.append(f"the time was up before {chosen - len(outcomes)} mutants were run")
    stale = set(allowed) - ({one.name for one in every} - {one.mutant.name for one in outcomes if not one.survived})
    notes += [f"allowed to survive, but killed or gone: `{_cell(name)}`" for name in sorted(stale)]
    return Report(
        benchmark="mutation",
        figures=figures,
        tables=(_counts(outcomes, excused), *_survivors(survivors, allowed)),
        notes=tuple(notes),
    )


def _killed(outcomes: Collection[Outcome]) -> float:
    return sum(not outcome.survived for outcome in outcomes) / len(outcomes) if outcomes else 1.0


def _counts(outcomes: Sequence[Outcome], excused: Collection[str]) -> Table:
    files = sorted({outcome.mutant.file for outcome in outcomes})
    rows = [_count(file, [one for one in outcomes if one.mutant.file == file], excused) for file in files]
    header = ("file", "mutants", "security", "killed", "hung", "survived", "of them security", "of them allowed")
    return Table(title="Mutants", header=header, rows=(*rows, _count("all", outcomes, excused)))


def _count(name: str, outcomes: Sequence[Outcome], excused: Collection[str]) -> tuple[str, ...]:
    survivors = [one.mutant for one in outcomes if one.survived]
    numbers = (
        len(outcomes),
        sum(one.mutant.security for one in outcomes),
        sum(one.fate is Fate.KILLED for one in outcomes),
        sum(one.fate is Fate.HUNG for one in outcomes),
        len(survivors),
        sum(mutant.security for mutant in survivors),
        sum(mutant.name in excused for mutant in survivors),
    )
    return name, *map(str, numbers)


def _survivors(survivors: Iterable[Outcome], allowed: Mapping[str, str]) -> Iterable[Table]:
    """A table each for those that must not survive, those that may, and the rest; none if it would be empty."""
    groups: dict[str, list[Outcome]] = {
        "Security mutants that survived": [],
        "Other mutants that survived": [],
        "Mutants that change nothing": [],
    }
    for one in survivors:
        excused, security = one.mutant.name in allowed, one.mutant.security
        groups[list(groups)[2 if excused else int(not security)]].append(one)
    for title, group in groups.items():
        if group:
            rows = tuple(
                (f"`{_cell(one.mutant.name)}`", str(one.mutant.line), allowed.get(one.mutant.name, one.fate.value))
                for one in group
            )
            yield Table(title=title, header=("mutant", "line", "why"), rows=rows)


def _cell(text: str) -> str:
    """Text within a table; a bar would end its cell."""
    return text.replace("|", "\\|")


def _selected(mutants: Iterable[Mutant], pattern: str) -> list[Mutant]:
    return [m for m in mutants if pattern in m.name or fnmatch.fnmatchcase(m.name, pattern)]


def _listed(mutant: Mutant) -> str:
    return f"{'security' if mutant.security else '        '}  {mutant.name}"


def _narrator(total: int) -> Callable[[Outcome], None]:
    """Says each survivor as it comes, and now and then how far we are."""
    done: list[Outcome] = []

    def heard(outcome: Outcome) -> None:
        done.append(outcome)
        if outcome.survived:
            say(f"{outcome.fate}: {outcome.mutant.name} (line {outcome.mutant.line})")
        if len(done) % SAID_EVERY == 0:
            say(f"{len(done)} of {total}, {sum(one.survived for one in done)} survived")

    return heard


if __name__ == "__main__":
    sys.exit(main())
