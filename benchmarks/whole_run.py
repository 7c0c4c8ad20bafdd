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
import os
import random
import statistics
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
from numpy.typing import NDArray

from benchmarks.common import EXAMPLES, Figure, Report, Table, data_parser, run, say, sized
from fedcore.codec import AnyEncoding, decode, encode, encode_nothing, release_of
from fedcore.codec.privacy import Accountant, Release
from fedcore.comparison.workers.problem import Problem
from fedcore.errors import EncodingError, TooFewContributed
from fedcore.flower.app import FlowerApp
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.quorum import quorum_for
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.system.assignments import override
from fedcore.training import train
from fedcore.training.engines import EngineConfig, World, make_engine

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
EVERYBODY = (0, 1, 2, 3)
RATES = (1e-4, 1e-3, 1e-2)
"""Learning rates; the one in the middle is the app's own."""
ROUNDS = (1, 7, 14)
MOVES = (1.0, 0.1, 1e-2, 1e-4)
DROPS = (0.1, 0.25)
ROUNDS_OF_A_RUN = 15
QUESTIONS = 20
FLOAT32_MAX = 3.4e38
EPSILONS = (8.0, 2.0)
SIZES = ((4, (1,)), (10, (1, 3)), (20, (1, 3, 6)))
"""Members, and how many of them help the server."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Closeness:
    """How near a difference of two sums is to one hospital's update. error: relative, in the L2 norm."""

    error: float
    cosine: float

    @classmethod
    def of(cls, found: Vector, true: Vector) -> Closeness:
        """Both [parameters]."""
        norms = float(np.linalg.norm(found) * np.linalg.norm(true))
        return cls(float(np.linalg.norm(found - true) / np.linalg.norm(true)), float(found @ true) / norms)

    def __str__(self) -> str:
        return f"{self.error:.2g} ({self.cosine:.3f})"


class Hospitals:
    """The four clients of a run; `rate` is their learning rate, settings those of the run."""

    def __init__(self, rate: float, settings: JobSettings) -> None:
        app = FlowerApp.load(EXAMPLES / "heart_disease")
        config = override(app.run_config, {"lr": rate}, "the run config")
        self._problem = Problem.load(app, config=config, sites=len(HOSPITALS))
        self._engine = make_engine(self._problem.recipe(), EngineConfig(), World())
        self._model = self._engine.model.state_dict()
        self._settings = settings
        self._plan = EncodingPlan(settings, least_cohort=3)
        self._known: dict[tuple[bytes, int, int], tuple[ModelState, int, float]] = {}
        self.start = self._vector(self._state())

    def sum(self, weights: Vector, sites: Sequence[int], server_round: int) -> tuple[Vector, int]:
        """What an exchange tells: the sum of the sites' weighted updates [parameters] and of their examples."""
        base = self._load(weights)
        encoding = self._plan.encoding("train", base.layout, len(EVERYBODY))
        total = np.zeros(encoding.words, np.uint64)
        for site in sites:
            total += self._words(encoding, base, *self._trained(weights, site, server_round))
        mean = decode(encoding, total, survivors=len(sites), base=base)
        assert mean.state is not None
        self._plan.learn("train", encoding, mean)
        return (self._vector(mean.state) - weights) * mean.examples, mean.examples

    def failures(self, weights: Vector) -> int:
        """How many of the four contribute nothing in a first round from this model, as the sum tells."""
        return len(EVERYBODY) - len(self.contributors(weights))

    def contributors(self, weights: Vector) -> list[int]:
        """Which of them do, as nobody is told."""
        bound = self._settings.metric_max
        return [site for site in EVERYBODY if abs(self._trained(weights, site, 1)[2]) <= bound]

    def update(self, weights: Vector, site: int, server_round: int) -> Vector:
        """The weighted update of one hospital, which nobody else should know [parameters]."""
        local, examples, _ = self._trained(weights, site, server_round)
        return (self._vector(local) - weights) * (1 if self._settings.private else examples)

    def _words(
        self, encoding: AnyEncoding, base: ModelState, local: ModelState, examples: int, loss: float
    ) -> NDArray[np.uint64]:
        """What a client sends, without its masks."""
        try:
            made = encode(
                encoding, base=base, local=local, examples=examples, metrics={"loss": loss}, randomness=os.urandom
            )
        except EncodingError:
            made = encode_nothing(encoding, randomness=os.urandom)
        return made.words

    def _trained(self, weights: Vector, site: int, server_round: int) -> tuple[ModelState, int, float]:
        key = weights.tobytes(), site, server_round
        if key not in self._known:
            self._load(weights)
            config = self._problem.config
            done = train(
                self._engine,
                self._problem.training(site),
                batch_size=int(config["batch-size"]),
                steps=int(config["local-steps"]),
                seed=self._problem.order_seed(site, server_round),
            )
            self._known[key] = self._state(), done.examples, done.loss
        return self._known[key]

    def _load(self, weights: Vector) -> ModelState:
        place = 0
        for tensor in self._model.values():
            part = weights[place : place + tensor.numel()].astype(np.float32).reshape(tuple(tensor.shape))
            tensor.copy_(torch.from_numpy(part))
            place += tensor.numel()
        return self._state()

    def _state(self) -> ModelState:
        return ModelState.from_arrays({name: tensor.numpy().copy() for name, tensor in self._model.items()})

    def _vector(self, state: ModelState) -> Vector:
        """In the order of the model, which is not that of the state."""
        return np.concatenate([state[name].reshape(-1).astype(np.float64) for name in self._model])


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
    moved = {(kept, move): list(moving(sites[app_rate], move, kept)) for kept, move in product((True, False), MOVES)}
    say("models that move less: done")
    lost = {drop: dropouts(sites[app_rate], drop, seeds=1 if arguments.quick else 3) for drop in DROPS}
    single = list(alone(sites[app_rate], sized(arguments, smallest=1, quick=3, whole=8)))
    say("crafted models: done")
    noised = {epsilon: list(_noised(epsilon)) for epsilon in EPSILONS}
    say("dropouts and noise: done")
    return Report(
        benchmark="whole_run",
        figures=_figures(moved, noised),
        tables=(
            _of_rounds(honest),
            _of_moves(moved),
            _of_dropouts(lost),
            _of_alone(single),
            _of_noise(noised),
            small_cohorts(),
        ),
        notes=(
            "a cell is the relative error of the difference of two sums against the update of the hospital that is in "
            "one of them alone, and their cosine in brackets; the median over the four hospitals",
            "nothing of the first three tables is left where an owner sets min-cohort to the size of the federation: "
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


def dropouts(hospitals: Hospitals, drop: float, seeds: int) -> list[list[Closeness]]:
    """Runs in which each hospital honestly drops out with this chance; all pairs of rounds that differ by one."""
    return [list(_dropping(hospitals, drop, random.Random(seed))) for seed in range(seeds)]


def _dropping(hospitals: Hospitals, drop: float, chance: random.Random) -> Iterator[Closeness]:
    weights, before = hospitals.start, None
    for number in range(1, ROUNDS_OF_A_RUN + 1):
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


def _median(found: Sequence[Closeness]) -> Closeness:
    return Closeness(
        statistics.median(one.error for one in found),
        statistics.median(one.cosine for one in found),
    )


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
        Figure(name="next_round_error", value=_median(moved[False, 1.0]).error, aim=1.0, at_least=True),
        Figure(name="kept_round_error", value=_median(moved[True, MOVES[-1]]).error, aim=1.0, at_least=True),
        *(
            Figure(name=f"noised_error_epsilon_{epsilon:g}", value=_median(found).error, aim=1.0, at_least=True)
            for epsilon, found in noised.items()
        ),
    )


def _of_rounds(honest: dict[tuple[float, int], list[Closeness]]) -> Table:
    rates, rounds = sorted({rate for rate, _ in honest}), sorted({number for _, number in honest})
    return Table(
        title="An honest run: two consecutive rounds, one hospital in the first alone",
        header=("learning rate", *(f"rounds {number}, {number + 1}" for number in rounds)),
        rows=tuple((f"{rate:g}", *(str(_median(honest[rate, number])) for number in rounds)) for rate in rates),
    )


def _of_moves(moved: dict[tuple[bool, float], list[Closeness]]) -> Table:
    return Table(
        title="An adversary: the second model lies a fraction of a round's step from the first",
        header=("fraction", "server-round named again", "the next server-round"),
        rows=tuple((f"{move:g}", *(str(_median(moved[kept, move])) for kept in (True, False))) for move in MOVES),
    )


def _of_dropouts(lost: dict[float, list[list[Closeness]]]) -> Table:
    rows = []
    for drop, runs in lost.items():
        pairs = [one for found in runs for one in found]
        best = min(pairs, key=lambda one: one.error, default=None)
        rows.append(
            (
                f"{drop:g}",
                f"{len(pairs) / len(runs):.1f}",
                str(_median(pairs)) if pairs else "-",
                str(best) if best else "-",
            )
        )
    return Table(
        title=f"Honest dropouts in {ROUNDS_OF_A_RUN} rounds at the app's learning rate",
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
            (f"{epsilon:g}", str(_median(found)), str(min(found, key=lambda one: one.error)))
            for epsilon, found in noised.items()
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
