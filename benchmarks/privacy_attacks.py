"""Published attacks on what surrounds an exchange, each carried out against owners of several minds.

    python benchmarks/privacy_attacks.py --data-dir DATA [--quick] [--json]

Real agents with the policies of `fedcore provision --policy stock`, `strict` (with epsilon 8 in the app's settings) and
`own` (which forbids nothing) train the apps of examples/digits and examples/heart_disease in this process. What an
attacker gets are masked sums. A record is read if an attacker's guess is as near to it as `benchmarks/privacy/reading`
says, an update within one percent. `noise alone` are strict owners who take any first model.

Some attacks need no more than the operator's token, others a server that lies. The last ones are of those that
docs/threat-model.md lists as still possible.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks.common import Figure, Report, Table, data_parser, run, say, sized
from benchmarks.privacy import crafted, differences, queries, versions
from benchmarks.privacy.federation import (
    NOISE_ALONE,
    OWN,
    STOCK,
    STRICT,
    Attacked,
    Owners,
    Subject,
    attacked,
    digits,
    hospitals,
)
from benchmarks.privacy.membership import FALSE_ALARMS, Membership, infer
from benchmarks.privacy.reading import DEVIATIONS, PIXELS, UPDATE, Reading
from fedcore.errors import DataError

LEVELS: Final = (STOCK, STRICT, OWN)
WITH_NOISE: Final = (*LEVELS, NOISE_ALONE)
SKIPPED: Final = "skipped: no data"
LITTLE_MORE_THAN_CHANCE: Final = 2 * FALSE_ALARMS
DIGITS, HOSPITALS, BUFFERED = "digits", "heart_disease", "digits, buffered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack, of a size that depends on the options.

    subject: whose clients are attacked.
    sizes: with --smallest (0 for not at all), --quick and neither.
    lies: whether the server has to lie.
    open: whether the threat model says that it is still possible.
    """

    name: str
    subject: str
    deed: Callable[[Attacked, int], Awaitable[Reading]]
    sizes: tuple[int, int, int] = (0, 1, 1)
    lies: bool = False
    open: bool = False
    owners: tuple[Owners, ...] = LEVELS


ATTACKS: Final = (
    Attack(name="trap weights", subject=DIGITS, deed=crafted.trap_weights, sizes=(1, 2, 4), owners=WITH_NOISE),
    Attack(name="LOKI, one model", subject=DIGITS, deed=crafted.loki, sizes=(1, 2, 4), owners=WITH_NOISE),
    Attack(name="LOKI, a model for each client", subject=DIGITS, deed=crafted.loki_for_each, lies=True),
    Attack(name="threshold model", subject=HOSPITALS, deed=crafted.thresholds, sizes=(0, 6, 10), owners=WITH_NOISE),
    Attack(name="Pasquini, one version", subject=BUFFERED, deed=versions.one_version, lies=True),
    Attack(name="Pasquini, two versions", subject=BUFFERED, deed=versions.two_versions, sizes=(1, 1, 1), lies=True),
    Attack(name="the same model, one client away", subject=HOSPITALS, deed=differences.same_model, lies=True),
    Attack(
        name="one ulp aside in a second run, one client away",
        subject=HOSPITALS,
        deed=differences.one_ulp_in_a_second_run,
    ),
    Attack(
        name="one ulp aside as a later model, one client away",
        subject=HOSPITALS,
        deed=differences.one_ulp,
        sizes=(1, 1, 1),
        lies=True,
        open=True,
        owners=WITH_NOISE,
    ),
    Attack(name="other metadata, one client away", subject=HOSPITALS, deed=differences.other_metadata, lies=True),
    Attack(name="w-max on either side of one client", subject=HOSPITALS, deed=differences.bound_on_examples),
    Attack(name="clip-norm on either side of one client", subject=HOSPITALS, deed=differences.bound_on_norm),
    Attack(name="clip-bound in the message", subject=HOSPITALS, deed=differences.bound_in_message, lies=True),
    Attack(name="stats, 2,048 cells", subject=HOSPITALS, deed=queries.many_bins, sizes=(4, 8, 20)),
    Attack(name="stats, two commands", subject=HOSPITALS, deed=queries.two_commands, sizes=(0, 5, 16), open=True),
    Attack(
        name="stats, 2,048 cells, before they are shown",
        subject=HOSPITALS,
        deed=queries.many_bins_of_the_sum,
        sizes=(0, 8, 20),
        lies=True,
        open=True,
    ),
    Attack(
        name="trap weights as a later model",
        subject=DIGITS,
        deed=crafted.later_trap_weights,
        sizes=(0, 2, 4),
        lies=True,
        open=True,
        owners=(STOCK, STRICT),
    ),
    Attack(
        name="threshold model as a later model",
        subject=HOSPITALS,
        deed=crafted.later_thresholds,
        sizes=(0, 6, 10),
        lies=True,
        open=True,
        owners=(STOCK, STRICT),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attack on owners of one mind."""

    attack: Attack
    owners: Owners
    reading: Reading
    checks: Sequence[str]
    exchanges: int
    seconds: float


def main() -> int:
    """The command line."""
    return run(measure, data_parser("Published attacks against stock, strict and own policies.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All attacks, one after the other."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    subjects = _subjects(sized(arguments, smallest=4, quick=4, whole=10))
    outcomes: list[Outcome] = []
    skipped: list[str] = []
    for attack in ATTACKS:
        size = sized(arguments, smallest=attack.sizes[0], quick=attack.sizes[1], whole=attack.sizes[2])
        if attack.subject not in subjects:
            skipped.append(attack.name)
        elif size:
            owners = LEVELS if arguments.smallest else attack.owners
            outcomes += asyncio.run(_carry_out(attack, subjects[attack.subject], owners, size))
    models = sized(arguments, smallest=4, quick=4, whole=8)
    rounds = sized(arguments, smallest=1, quick=3, whole=15)
    names = [name for name in (HOSPITALS, DIGITS) if name in subjects][: 1 if arguments.smallest else None]
    memberships = {
        (name, owners.name): infer(name, models, noise=owners.noise, rounds=rounds)
        for name in names
        for owners in (STOCK, STRICT)
    }
    return report(outcomes, skipped, memberships)


def _subjects(clients: int) -> Mapping[str, Subject]:
    """Those whose data are here."""
    found = {DIGITS: digits(clients), BUFFERED: digits(4, asynchrony="buffered"), HOSPITALS: hospitals()}
    try:
        len(found[HOSPITALS].records)
    except DataError as error:
        say(f"{HOSPITALS}: {error}")
        del found[HOSPITALS]
    return found


async def _carry_out(attack: Attack, subject: Subject, minds: Sequence[Owners], size: int) -> list[Outcome]:
    outcomes = []
    for owners in minds:
        began = time.perf_counter()
        async with attacked(subject, owners) as federation:
            reading = await attack.deed(federation, size)
            checks, exchanges = federation.checks, federation.exchanges
        seconds = time.perf_counter() - began
        say(f"{attack.name}, {owners.name}: {len(reading.records)} records, {', '.join(checks) or 'not refused'}")
        outcomes.append(
            Outcome(attack=attack, owners=owners, reading=reading, checks=checks, exchanges=exchanges, seconds=seconds)
        )
    return outcomes


def report(
    outcomes: Sequence[Outcome], skipped: Sequence[str], memberships: Mapping[tuple[str, str], Membership]
) -> Report:
    """Figures and tables."""
    figures = [_records(outcomes, owners) for owners in LEVELS]
    still = [one for one in outcomes if one.attack.open]
    for owners in (STOCK, STRICT):
        figures += [
            _figure(f"records_read_still_possible_{owners.name}", "records", _total(still, owners, "records")),
            _figure(f"updates_read_{owners.name}", "updates", _total(outcomes, owners, "updates")),
            _figure(f"single_values_told_{owners.name}", "values", _total(outcomes, owners, "singles")),
        ]
    figures += [
        Figure(name=f"membership_rate_{data}_{owners}", value=found.rate, aim=LITTLE_MORE_THAN_CHANCE)
        for (data, owners), found in memberships.items()
    ]
    return Report(
        benchmark="privacy_attacks",
        figures=tuple(figures),
        tables=(_attacks_table(outcomes, skipped), _membership_table(memberships)),
        notes=(
            f"a record is read within {PIXELS:g} of digits' 64 pixels (root mean square, pixels of 0 to 1), or within "
            f"{DEVIATIONS:g} of 13 features in standard deviations; an update within {UPDATE:.0%} of its length",
            "correlation: with the true record, or the true update, the mean over those that were read; where none "
            "was, the largest of any guess with any record or update, which is what chance and noise give",
            "values: of one column, known to be those of one person, of whom nothing else is known",
            "records_read_stock, _strict and _own do not count the attacks that are marked as still possible, which "
            "have figures of their own: a server that lies can send a crafted model in place of any later one",
            f"membership: true alarms at {FALSE_ALARMS:.0%} false ones, over all models and training records; half of "
            "the records are members. Runs with noise have epsilon 8 for each client",
        ),
    )


def _records(outcomes: Iterable[Outcome], owners: Owners) -> Figure:
    """What is read; at least something by those whom nobody refuses, or the attacks would show nothing."""
    read = _total([one for one in outcomes if not one.attack.open], owners, "records")
    works = owners is OWN
    name = f"records_read_{owners.name}"
    return Figure(name=name, unit="records", value=read, aim=1 if works else 0, at_least=works)


def _figure(name: str, unit: str, value: int) -> Figure:
    return Figure(name=name, unit=unit, value=value, aim=0)


def _total(outcomes: Iterable[Outcome], owners: Owners, what: str) -> int:
    """Over the attacks on these owners: distinct records or updates of each attack, or values."""
    found = [getattr(one.reading, what) for one in outcomes if one.owners is owners]
    return sum(part if isinstance(part, int) else len(part) for part in found)


def _attacks_table(outcomes: Sequence[Outcome], skipped: Sequence[str]) -> Table:
    header: tuple[str, ...] = (
        "attack", "by", "still possible", "owners", "refused by", "exchanges", "records", "updates", "values",
        "correlation", "s",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            one.attack.name,
            "a server that lies" if one.attack.lies else "the operator",
            "yes" if one.attack.open else "",
            one.owners.name,
            ", ".join(one.checks) or "-",
            str(one.exchanges),
            str(len(one.reading.records)),
            str(len(one.reading.updates)),
            str(one.reading.singles),
            f"{one.reading.correlation:.3f}",
            f"{one.seconds:.1f}",
        )
        for one in outcomes
    ]
    rows += [(name, SKIPPED, *[""] * (len(header) - 2)) for name in skipped]
    return Table(title="What each attack reads", header=header, rows=tuple(rows))


def _membership_table(memberships: Mapping[tuple[str, str], Membership]) -> Table:
    rows = tuple(
        (data, owners, str(one.models), f"{one.rate:.2%}", f"{one.area:.3f}", f"{one.accuracy:.1%}")
        for (data, owners), one in memberships.items()
    )
    title = "LiRA on the final model: which records it was trained on"
    header = ("data", "owners", "models", "true alarms at 1 % false ones", "area under the curve", "accuracy")
    return Table(title=title, header=header, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
