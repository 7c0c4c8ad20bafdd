"""What is still possible over a whole run, measured at four real hospitals (docs/threat-model.md).

    python benchmarks/whole_run.py --data-dir DATA [--quick] [--json]

Near-equal models: two sums whose survivors differ by one hospital, from models that are not the same. How close does
their difference come to that hospital's own update? Training and data are those of examples/heart_disease; the sums go
through the codec, without masks, which are exact. And differential privacy in small cohorts: epsilon as it is stated
against epsilon when c of n help the server, each of whom knows its own share of the noise.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch

from benchmarks.common import Figure, Report, Table, data_parser, run, say, sized
from benchmarks.hospitals import EVERYBODY, HOSPITALS, RATES, Closeness, Hospitals, Vector
from benchmarks.whole_run_near import ROUNDS_OF_A_RUN, TWICE, attacks, median, near_enough, run_twice, simulated
from fedcore.codec import release_of
from fedcore.codec.privacy import Accountant, Release
from fedcore.errors import TooFewContributed
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.quorum import quorum_for
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState

ROUNDS = (1, 7, 14)
MOVES = (1.0, 0.5, 0.2, 0.1, 1e-2, 1e-4)
DROPS = (0.1, 0.25)
QUESTIONS = 20
FLOAT32_MAX = 3.4e38
EPSILONS = (8.0, 2.0)
SIZES = ((4, (1,)), (10, (1, 3)), (20, (1, 3, 6)))
"""Members, and how many of them help the server."""


def main() -> int:
    """The command line."""
    options = data_parser("What is still possible over a whole run: near-equal models, and noise in small cohorts.")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All tables; with --quick fewer rounds and one run of dropouts."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    rates, rounds = (RATES[1:2], ROUNDS[:1]) if arguments.quick else (RATES, ROUNDS)
    exact = JobSettings(field_bits=32)
    sites = {rate: Hospitals(rate, exact) for rate in rates}
    honest = {(rate, number): list(consecutive(sites[rate], number)) for rate, number in product(rates, rounds)}
    say("consecutive rounds: done")
    app_rate = RATES[1]
    moves = sized(arguments, smallest=(MOVES[0], MOVES[-1]), quick=MOVES, whole=MOVES)
    length = sized(arguments, smallest=2, quick=ROUNDS_OF_A_RUN, whole=ROUNDS_OF_A_RUN)
    moved = {(kept, move): list(moving(sites[app_rate], move, kept)) for kept, move in product((True, False), moves)}
    answers = {move: near_enough(sites[app_rate], move) for move in moves}
    twice = (
        attacks(exact, TWICE[: 1 if arguments.smallest else None]),
        run_twice(exact, sized(arguments, smallest=1, quick=2, whole=6), length),
        simulated(
            sized(arguments, smallest=1, quick=1, whole=3), {"num-server-rounds": 2} if arguments.smallest else {}
        ),
    )
    say("the app twice: done")
    say("models that move less: done")
    lost = {drop: dropouts(sites[app_rate], drop, 1 if arguments.quick else 3, length) for drop in DROPS}
    single = list(alone(sites[app_rate], sized(arguments, smallest=1, quick=3, whole=8)))
    say("crafted models: done")
    noised = {epsilon: list(_noised(epsilon)) for epsilon in EPSILONS}
    say("dropouts and noise: done")
    return Report(
        benchmark="whole_run",
        figures=_figures(moved, noised),
        tables=(
            _of_rounds(honest),
            _of_moves(moved, answers),
            *twice,
            _of_dropouts(lost, length),
            _of_alone(single),
            _of_noise(noised),
            small_cohorts(),
        ),
        notes=(
            "a cell is the relative error of the difference of two sums against the update of the hospital that is in "
            "one of them alone, and their cosine in brackets; the median over the four hospitals",
            "the rule on nearly the same models measures in steps from a model to the next of its run, so two rounds "
            "in a row are never near: what two honest rounds tell, by the first table, stays",
            "nothing of the tables of hospitals is left where an owner sets min-cohort to the size of the federation: "
            "then no sum is over fewer, and a round that loses a client fails",
            "pad-seconds has no effect on sums; what it does to time is in benchmarks/timing_channel.py",
        ),
    )


def consecutive(hospitals: Hospitals, number: int) -> Iterator[Closeness]:
    """Rounds `number` and the next of an honest run, with one hospital in the first of them alone."""
    weights = hospitals.start
    for earlier in range(1, number):
        weights = _stepped(hospitals, weights, earlier)
    full, examples = hospitals.sum(weights, EVERYBODY, number)
    after = weights + full / examples
    for site in EVERYBODY:
        partial, _ = hospitals.sum(after, _without(site), number + 1)
        yield Closeness.of(full - partial, hospitals.update(weights, site, number))


def moving(hospitals: Hospitals, move: float, kept: bool, server_round: int = 1) -> Iterator[Closeness]:
    """An adversary lets the model move by a fraction of a round; `kept`: it says that the round is still the same."""
    weights = hospitals.start
    full, examples = hospitals.sum(weights, EVERYBODY, server_round)
    after = weights + move * full / examples
    for site in EVERYBODY:
        partial, _ = hospitals.sum(after, _without(site), server_round + (not kept))
        yield Closeness.of(full - partial, hospitals.update(weights, site, server_round))


def dropouts(hospitals: Hospitals, drop: float, seeds: int, rounds: int) -> list[list[Closeness]]:
    """Runs in which each hospital honestly drops out with this chance; all pairs of rounds that differ by one."""
    return [list(_dropping(hospitals, drop, rounds, random.Random(seed))) for seed in range(seeds)]


def _dropping(hospitals: Hospitals, drop: float, rounds: int, chance: random.Random) -> Iterator[Closeness]:
    weights, before = hospitals.start, None
    for number in range(1, rounds + 1):
        here = tuple(site for site in EVERYBODY if chance.random() >= drop)
        if len(here) < 3:
            continue  # below the quorum: no sum
        told, examples = hospitals.sum(weights, here, number)
        if before is not None and len(set(before[1]) ^ set(here)) == 1:
            (site,) = set(before[1]) ^ set(here)
            sign = 1 if site in before[1] else -1
            at, when = (before[0], number - 1) if sign > 0 else (weights, number)
            yield Closeness.of(sign * (before[2] - told), hospitals.update(at, site, when))
        before = weights, here, told
        weights = weights + told / examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A hospital that a crafted model makes the only one to contribute.

    questions: exchanges until it did. told: what the sum then says of it.
    """

    feature: int
    site: int
    questions: int
    told: str


def alone(hospitals: Hospitals, features: int) -> Iterator[Alone]:
    """Models with one huge weight: bisect for one under which the loss of three of four is beyond metric-max."""
    for feature in range(features):
        low, high = 1.0, FLOAT32_MAX
        for questions in range(1, QUESTIONS + 1):
            middle = math.sqrt(low) * math.sqrt(high)
            weights = np.zeros_like(hospitals.start)
            weights[feature] = middle
            failed = hospitals.failures(weights)
            if failed == len(EVERYBODY) - 1:
                (site,) = hospitals.contributors(weights)
                told = _told(hospitals, weights, site)
                yield Alone(feature=feature, site=site, questions=questions, told=told)
                break
            low, high = (low, middle) if failed == len(EVERYBODY) else (middle, high)


def _told(hospitals: Hospitals, weights: Vector, site: int) -> str:
    try:
        total, examples = hospitals.sum(weights, EVERYBODY, 1)
    except TooFewContributed:
        return "closed"
    return f"{examples} patients, {Closeness.of(total, hospitals.update(weights, site, 1))}"


def _noised(epsilon: float) -> Iterator[Closeness]:
    """The best attack of all, the same model again, on sums with noise."""
    settings = JobSettings(dp_epsilon=epsilon, dp_rounds=ROUNDS_OF_A_RUN, clip_norm=0.1, field_bits=32)
    hospitals = Hospitals(RATES[1], settings)
    for _ in range(2):
        yield from moving(hospitals, 0.0, kept=True)


def _stepped(hospitals: Hospitals, weights: Vector, number: int) -> Vector:
    told, examples = hospitals.sum(weights, EVERYBODY, number)
    return weights + told / examples


def _without(site: int) -> tuple[int, ...]:
    return tuple(other for other in EVERYBODY if other != site)


# --- differential privacy in small cohorts ---------------------------------------------------------------------------


def small_cohorts() -> Table:
    """Epsilon of a whole run as stated, and for somebody who looks from next to c clients that help the server."""
    rows = []
    for (members, helping), epsilon in product(SIZES, EPSILONS):
        settings = JobSettings(dp_epsilon=epsilon, dp_rounds=ROUNDS_OF_A_RUN, clip_norm=1.0)
        release = release_of(EncodingPlan(settings, least_cohort=3).encoding("train", _layout(), members))
        assert release is not None
        quorum = quorum_for(settings, members, least_cohort=3)
        real = [f"{_epsilon(release, quorum - c, settings.dp_delta):.2f} (c = {c})" for c in (0, *helping)]
        rows.append((str(members), f"{epsilon:g}", str(quorum), str(release.shares), ", ".join(real)))
    return Table(
        title=f"Epsilon of {ROUNDS_OF_A_RUN} rounds when c of n know their own share of the noise",
        header=("members", "stated", "smallest sum", "shares counted on", "real, of the smallest sum"),
        rows=tuple(rows),
    )


def _epsilon(release: Release, shares: int, delta: float) -> float:
    known = Release(
        mechanism=release.mechanism,
        variance=release.variance,
        shares=shares,
        scale=release.scale,
        dimension=release.dimension,
    )
    return Accountant().epsilon(delta, further=known, times=ROUNDS_OF_A_RUN)


def _layout() -> Any:
    return ModelState.from_arrays({"weight": np.zeros(14, np.float32)}).layout


# --- tables ----------------------------------------------------------------------------------------------------------


def _figures(
    moved: dict[tuple[bool, float], list[Closeness]], noised: dict[float, list[Closeness]]
) -> tuple[Figure, ...]:
    return (
        Figure(name="next_round_error", value=median(moved[False, 1.0]).error, aim=1.0, at_least=True),
        Figure(name="kept_round_error", value=median(moved[True, MOVES[-1]]).error, aim=1.0, at_least=True),
        *(
            Figure(name=f"noised_error_epsilon_{epsilon:g}", value=median(found).error, aim=1.0, at_least=True)
            for epsilon, found in noised.items()
        ),
    )


def _of_rounds(honest: dict[tuple[float, int], list[Closeness]]) -> Table:
    rates, rounds = sorted({rate for rate, _ in honest}), sorted({number for _, number in honest})
    return Table(
        title="An honest run: two consecutive rounds, one hospital in the first alone",
        header=("learning rate", *(f"rounds {number}, {number + 1}" for number in rounds)),
        rows=tuple((f"{rate:g}", *(str(median(honest[rate, number])) for number in rounds)) for rate in rates),
    )


def _of_moves(moved: dict[tuple[bool, float], list[Closeness]], answers: dict[float, str]) -> Table:
    return Table(
        title="The second model lies a fraction of a round's step from the first",
        header=("fraction", "server-round named again", "the next server-round", "stock clients, in another run"),
        rows=tuple(
            (f"{move:g}", *(str(median(moved[kept, move])) for kept in (True, False)), answer)
            for move, answer in answers.items()
        ),
    )


def _of_dropouts(lost: dict[float, list[list[Closeness]]], rounds: int) -> Table:
    rows = []
    for drop, runs in lost.items():
        pairs = [one for found in runs for one in found]
        best = min(pairs, key=lambda one: one.error, default=None)
        rows.append(
            (
                f"{drop:g}",
                f"{len(pairs) / len(runs):.1f}",
                str(median(pairs)) if pairs else "-",
                str(best) if best else "-",
            )
        )
    return Table(
        title=f"Honest dropouts in {rounds} rounds at the app's learning rate",
        header=("chance a round", "pairs of rounds that differ by one, a run", "median", "best"),
        rows=tuple(rows),
    )


def _of_alone(single: Sequence[Alone]) -> Table:
    return Table(
        title="A crafted model: one huge weight, under which three of the four hospitals contribute nothing",
        header=("feature", "who is left", "exchanges", "what the sum tells of it"),
        rows=tuple((str(one.feature), HOSPITALS[one.site], str(one.questions), one.told) for one in single),
    )


def _of_noise(noised: dict[float, list[Closeness]]) -> Table:
    return Table(
        title=f"The same model again, with differential privacy over {ROUNDS_OF_A_RUN} rounds and clip-norm 0.1",
        header=("epsilon", "median", "best of 8"),
        rows=tuple(
            (f"{epsilon:g}", str(median(found)), str(min(found, key=lambda one: one.error)))
            for epsilon, found in noised.items()
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
