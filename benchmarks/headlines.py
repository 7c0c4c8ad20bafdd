"""How often the headline of a comparison says what is false, on made runs of which the truth is known.

    python benchmarks/headlines.py [--quick] [--json]

A world has modes whose models are right on so many test examples in the mean over all seeds and examples. A run draws
its seed's luck, which all modes of that seed share, its own, and which of the world's test examples it gets right; some
examples are hard for all modes, some for one of them. The runs become a `Comparison`, and the product's own code makes
its claims and sentences of it.

false_headlines: the share of headlines of which a verdict or a sentence is false: "wins" or "loses" where the modes are
equal or it is the other way round, a closed gap if there is none, an interval that does not hold the true
difference, or a sentence that says otherwise than its claim. All that one headline says has to be true. The aim is what
intervals of 95 % that hold together allow.

falls_unsaid: the share of comparisons with a run whose last model lost most of what was learnt, without a word of it.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, sized
from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.report import Comparison, ModeTitle
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.verdicts import Claim, claims_of
from fedcore.comparison.results import CurvePoint, RunResult, SiteResult, number_of

FALSE_AIM = 0.05
SEEDS = (2, 3, 5)
SITES = 4
ROUNDS = 10
DRAWS = 100
HARD, ODD, OWN = 1.0, 0.5, 0.5
"""Deviations of what makes an example hard for all modes, for one of them, and for one run."""

TOGETHER, ALONE, POOLED = "federated", "local", "centralized"
OTHERS = ("allreduce", "local-sgd", "ps-sync", "ps-async")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is true.

    accuracy: of each mode, the mean over all seeds and all examples.
    common, own: deviations of a seed's luck, of all its runs and of each.
    examples: in the test set.
    fresh: whether each seed has a test set of its own.
    falls: the share of the later rounds of pooled data, the last one too, whose models lose most of what was learnt and
        are right on the share `fallen`; the accuracy of the last is in the mean between both.
    """

    accuracy: Mapping[str, float]
    common: float = 0.1
    own: float = 0.1
    examples: int = 400
    fresh: bool = False
    falls: float = 0.0
    fallen: float = 0.55

    def true_accuracy(self, mode: str) -> float:
        """Mean over all seeds and examples, of the last model."""
        stable = self.accuracy[mode]
        return (1 - self.falls) * stable + self.falls * self.fallen if mode == POOLED else stable


WORLDS: Mapping[str, World] = {
    "no difference": World(accuracy={TOGETHER: 0.8, ALONE: 0.8, POOLED: 0.8}),
    "no difference, seven modes": World(accuracy=dict.fromkeys((TOGETHER, ALONE, POOLED, *OTHERS), 0.8)),
    "federated better by 10 points": World(accuracy={TOGETHER: 0.8, ALONE: 0.7, POOLED: 0.8}),
    "federated better by 2 points": World(accuracy={TOGETHER: 0.8, ALONE: 0.78, POOLED: 0.82}),
    "half of a gap of 20 points": World(accuracy={TOGETHER: 0.8, ALONE: 0.7, POOLED: 0.9}),
    "pooled unstable": World(accuracy={TOGETHER: 0.8, ALONE: 0.7, POOLED: 0.85}, falls=0.3),
    "pooled unstable, equal in the mean": World(accuracy={TOGETHER: 0.76, ALONE: 0.76, POOLED: 0.85}, falls=0.3),
    "sites differ, other tests for each seed": World(
        accuracy={TOGETHER: 0.75, ALONE: 0.65, POOLED: 0.75}, common=0.4, own=0.3, examples=150, fresh=True
    ),
    "40 test examples": World(accuracy={TOGETHER: 0.8, ALONE: 0.8, POOLED: 0.8}, examples=40),
}


def main() -> int:
    """The command line."""
    return run(measure, parser("How often a headline says what is false.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Every world with every number of seeds."""
    repeats = sized(arguments, smallest=2, quick=20, whole=200)
    rows: list[tuple[str, ...]] = []
    total = Count()
    worst = 0.0
    for name, world in WORLDS.items():
        for seeds in SEEDS:
            counted = Count()
            for number in range(repeats):
                rng = np.random.default_rng([len(rows), number])
                counted.add(world, made(world, seeds, rng))
            worst = max(worst, counted.false / repeats)
            rows.append((name, str(seeds), *counted.cells()))
            total.merge(counted)
    return Report(
        benchmark="headlines",
        figures=(
            Figure(name="false_headlines", value=total.false / total.headlines, aim=FALSE_AIM),
            Figure(name="false_headlines_of_the_worst", value=worst, aim=2 * FALSE_AIM),
            Figure(name="falls_unsaid", value=total.unsaid / max(1, total.fallen), aim=0.0),
            Figure(name="differences_told", value=total.told / max(1, total.true), aim=0.0, at_least=True),
        ),
        tables=(
            Table(
                title="Headlines",
                header=(
                    *("world", "seeds", "false", "of them: verdicts", "intervals", "sentences"),
                    *("true differences told", 'false by "more than one deviation"'),
                ),
                rows=tuple(rows),
            ),
        ),
        notes=(
            f"{repeats} comparisons of each world and number of seeds; {SITES} sites; {DRAWS} draws of test examples",
            "false: one sentence or more is; verdicts, intervals, sentences: the shares that each alone makes",
            'last column: the rule that was before, "wins" where the mean difference exceeds its standard deviation',
            *(f"for example, {name}, 3 seeds: {example(world)}" for name, world in list(WORLDS.items())[2:6:3]),
        ),
    )


def example(world: World) -> str:
    """The first sentences of a headline."""
    return " ".join(headline(made(world, 3, np.random.default_rng(7)))[:2])


# --- what is checked -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Count:
    """Over some headlines."""

    headlines: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    true: int = 0
    told: int = 0
    fallen: int = 0
    unsaid: int = 0

    @property
    def false(self) -> int:
        """Headlines with anything false."""
        return self.kinds["false"]

    def add(self, world: World, comparison: Comparison) -> None:
        """Judge one."""
        claims, sentences = claims_of(comparison), headline(comparison)
        found = {kind for kind, wrong in _errors(world, claims, sentences) if wrong}
        self.headlines += 1
        self.kinds.update(found | ({"false"} if found else set()))
        self.kinds["before"] += any(_false_before(world, one) for one in claims if one.about in ("alone", "pooled"))
        for one in claims:
            if one.about in ("alone", "pooled") and abs(lead_of(world, one.label, one.other)) > 1e-9:
                self.true += 1
                self.told += one.verdict in ("ahead", "behind")
        fallen = {run.mode for run in comparison.runs if _fell(run)}
        self.fallen += bool(fallen)
        self.unsaid += not all(any(one.startswith(f"{mode} fell ") for one in sentences) for mode in fallen)

    def merge(self, other: Count) -> None:
        """Add another's."""
        self.headlines += other.headlines
        self.kinds.update(other.kinds)
        self.true, self.told = self.true + other.true, self.told + other.told
        self.fallen, self.unsaid = self.fallen + other.fallen, self.unsaid + other.unsaid

    def cells(self) -> tuple[str, ...]:
        """Shares in per cent."""
        shares = (self.kinds[kind] / self.headlines for kind in ("false", "verdict", "interval", "sentence"))
        told = f"{self.told / self.true:.0%}" if self.true else "–"
        return (*(f"{share:.1%}" for share in shares), told, f"{self.kinds['before'] / self.headlines:.0%}")


def lead_of(world: World, label: str, other: str) -> float:
    """By how much a mode is better in truth."""
    return world.true_accuracy(label) - world.true_accuracy(other)


def _errors(world: World, claims: tuple[Claim, ...], sentences: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    for one in claims:
        lead = lead_of(world, one.label, one.other)
        yield "verdict", (one.verdict == "ahead" and lead < 1e-9) or (one.verdict == "behind" and lead > -1e-9)
        if one.about != "best" and one.low is not None and one.high is not None:
            yield "interval", not one.low <= lead <= one.high
    verdicts = {(one.label, one.other): one.verdict for one in claims}
    for sentence in sentences:
        for label, other, ahead in _said(sentence):
            lead = lead_of(world, label, other)
            yield "sentence", (lead < 1e-9 if ahead else lead > -1e-9)
            yield "sentence", verdicts.get((label, other)) != ("ahead" if ahead else "behind")
        if "closes" in sentence or "gap" in sentence.partition("so that there may be")[0]:
            yield "sentence", lead_of(world, POOLED, ALONE) < 1e-9
        if "has the best" in sentence:
            label, near = sentence.partition(" has the best")[0], sentence.partition("not distinguishable from")[2]
            for mode in world.accuracy:
                if mode != label and not re.search(rf"\b{mode}\b", near):
                    yield "sentence", lead_of(world, label, mode) < 1e-9


def _said(sentence: str) -> Iterator[tuple[str, str, bool]]:
    """Mode, other mode, and whether the sentence says that it is better or worse."""
    for words, ahead in (("Federating wins over sites alone", True), ("loses to sites alone", False)):
        if words in sentence:
            yield TOGETHER, ALONE, ahead
    for label, verb, other in re.findall(r"([\w-]+) (wins over|loses to) ([\w-]+)", sentence):
        if label in (TOGETHER, POOLED, *OTHERS) and other in (POOLED, ALONE, *OTHERS):
            yield label, other, verb == "wins over"
    if "are left" in sentence:
        yield TOGETHER, POOLED, False


def _false_before(world: World, one: Claim) -> bool:
    """Whether the mean exceeded one standard deviation, and the truth is otherwise."""
    lead = lead_of(world, one.label, one.other)
    wins = one.lead is not None and one.sd is not None and abs(one.lead) > one.sd
    return wins and (abs(lead) < 1e-9 or (one.lead or 0) * lead < 0)


def _fell(one: RunResult) -> bool:
    values = [number_of(point.metrics, "accuracy") or 0.0 for point in one.curve]
    return max(values) - values[-1] > 0.15


# --- made runs -------------------------------------------------------------------------------------------------------


def made(world: World, seeds: int, rng: np.random.Generator) -> Comparison:
    """A comparison of all modes of a world."""
    modes = list(world.accuracy)
    tests = [_Test.drawn(world, rng)] * seeds
    if world.fresh:
        tests = [_Test.drawn(world, rng) for _ in range(seeds)]
    runs = []
    for seed, test in enumerate(tests, start=1):
        common = rng.normal(0, world.common)
        runs += [test.run(world, mode, seed, common, rng) for mode in modes]
    return Comparison(
        app="made",
        sites=SITES,
        partition="",
        seeds=tuple(range(1, seeds + 1)),
        run_config={},
        settings={},
        created="2026-01-01T00:00:00+00:00",
        machine={},
        modes=tuple(ModeTitle(label=mode, kind=mode, title=mode) for mode in modes),
        runs=tuple(runs),
        judged_by=JudgedBy(name="accuracy", better="max"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """A test set: how hard each example is, for all modes [n] and for each [n], and how often each draw has it."""

    hard: NDArray[np.float64]
    odd: Mapping[str, NDArray[np.float64]]
    times: NDArray[np.int64]

    @classmethod
    def drawn(cls, world: World, rng: np.random.Generator) -> _Test:
        n = world.examples
        odd = {mode: rng.normal(0, ODD, n) for mode in world.accuracy}
        return cls(hard=rng.normal(0, HARD, n), odd=odd, times=rng.poisson(1.0, (DRAWS, n)))

    def run(self, world: World, mode: str, seed: int, common: float, rng: np.random.Generator) -> RunResult:
        """One run, of whose later rounds some may have fallen, also the last one."""
        unstable = mode == POOLED and world.falls > 0
        lucks = [common + rng.normal(0, world.own) for _ in range(SITES if mode == ALONE else 1)]
        steady = self._right(world, mode, world.accuracy[mode], lucks, rng)
        low = self._right(world, mode, world.fallen, lucks, rng) if unstable else steady
        fallen = [n > ROUNDS // 3 and unstable and rng.random() < world.falls for n in range(1, ROUNDS + 1)]
        right = low if fallen[-1] else steady
        drawn = self.times @ right / self.times.sum(axis=1)
        way = [0.5, *(float(low.mean()) if fell else _on_the_way(n, steady) for n, fell in enumerate(fallen, start=1))]
        curve = tuple(CurvePoint(round=n, metrics={"accuracy": value}) for n, value in enumerate(way))
        share, rest = divmod(world.examples, SITES)
        sites = tuple(
            SiteResult(site=f"client-{n + 1}", examples=share + (n < rest), metrics={"accuracy": way[-1]})
            for n in range(SITES)
        )
        return RunResult(
            mode=mode, kind=mode, seed=seed, curve=curve, sites=sites, bootstrap={"accuracy": tuple(drawn.tolist())}
        )

    def _right(
        self, world: World, mode: str, accuracy: float, lucks: Sequence[float], rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Which examples a model is right on [n]; of several models, how many of them."""
        deviation = math.sqrt(HARD**2 + ODD**2 + OWN**2 + world.common**2 + world.own**2)
        able = NormalDist().inv_cdf(accuracy) * deviation
        noise = [rng.normal(0, OWN, world.examples) for _ in lucks]
        each = [able + luck > self.hard + self.odd[mode] + own for luck, own in zip(lucks, noise, strict=True)]
        right: NDArray[np.float64] = np.mean(each, axis=0)
        return right


def _on_the_way(number: int, right: NDArray[np.float64]) -> float:
    """The accuracy after a round, which grows towards the last one's."""
    share = 1.0 if number == ROUNDS else 1 - math.exp(-number)
    return 0.5 + share * (float(right.mean()) - 0.5)


if __name__ == "__main__":
    sys.exit(main())
