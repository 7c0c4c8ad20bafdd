"""Whole runs in memory, secure against plain: how far the two models are apart, over the bound on that.

Real strategies of Flower ask sites that come and go; in the secure run their answers go through the codec, scales and
repeats as in any run (but masks, which cancel). What the strategies make of it is compared element by element after
every round.

The bound is carried along the plain run, element by element, in float64. The sites' training is x + A (target - x), a
dozen steps of gradient descent on a quadratic: of a difference e between the two global models it leaves (1 - A) e. To
this the codec adds at most its bound (fedcore/codec/scaling/error_bound.py, from the statistics of the round), and both
runs their roundoff in float32. FedAvg takes that as the next model.
For FedAdam and FedYogi the differences of the update,
of both moments and of the step follow from those before by the strategies' own formulas: the moments are sums with
known weights, and m / (sqrt(v) + tau) is between its values at the ends of the interval in which v lies; where Yogi's
sign may differ, by twice what it adds. Nothing is estimated, so a ratio above 1 is a fault.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedYogi
from flwr.serverapp.strategy.fedopt import FedOpt
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from fedcore.codec import Encoding, decode, encode
from fedcore.codec.scaling.error_bound import error_bound_of
from fedcore.errors import RoundingTooCoarse, UpdateTooLarge
from fedcore.flower.grid.grid import ExchangeBackend, ExchangeGrid
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.flower.records import SERVER_NODE, arrays_from_state, state_from_arrays
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.events import FiguresFound

ROUNDS = 20
SHAPES = {"weight": 2000, "bias": 10}
"""One large tensor, and one that shares the scale of small ones."""
APPROACH = 0.5
"""A of the local training: how much of the way to its own target a site goes in one round."""
SPIKES = 0.01
UNIT = 2.0**-24
SLACK = 16
"""Units of roundoff, 2^-24, for the handful of float32 operations of a strategy."""
MOST_REPEATS = 4

Vector = NDArray[np.float64]
Presence = Callable[[int], Sequence[int]]

STRATEGIES: Mapping[str, type[FedAvg]] = {"FedAvg": FedAvg, "FedAdam": FedAdam, "FedYogi": FedYogi}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Sites with their numbers of examples, and which of them (from 0 on) take part in a round (from 1 on)."""

    sizes: Sequence[int]
    present: Presence


def _come_and_go(count: int, least: int) -> Presence:
    """Each is away in about a third of the rounds."""
    chance = np.random.default_rng(count)
    counts = chance.integers(least, count, size=ROUNDS, endpoint=True)
    rounds = [sorted(chance.permutation(count)[:present].tolist()) for present in counts]
    return lambda number: rounds[number - 1]


STORIES: Mapping[str, Story] = {
    "1, 4, 16, 64; the largest away in round 2": Story(
        sizes=(1, 4, 16, 64), present=lambda number: (0, 1, 2) if number == 2 else (0, 1, 2, 3)
    ),
    "1 to 5; one of 1,000 comes in round 5": Story(
        sizes=(1, 2, 5, 1000), present=lambda number: (0, 1, 2) if number < 5 else (0, 1, 2, 3)
    ),
    "1 to 1,000, 5 sites that come and go": Story(sizes=(1, 6, 30, 200, 1000), present=_come_and_go(5, 3)),
    "1 to 1,000, 14 sites that come and go": Story(
        sizes=tuple(int(size) for size in np.geomspace(1, 1000, 14)), present=_come_and_go(14, 8)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """One pair of runs. difference, bound: where their ratio is largest, over all rounds and elements."""

    rounds: int
    repeats: int
    difference: float
    bound: float

    @property
    def ratio(self) -> float:
        """Difference over bound; 0 if there is no difference."""
        return self.difference / self.bound if self.difference else 0.0


def compare(story: Story, strategy: str, *, bits: int, rounds: int = ROUNDS) -> Apart:
    """Run both, and compare their models after every round."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER_NODE, 0
    sites = Sites(story)
    secure = _Secure(sites, run_id=1, settings=JobSettings(field_bits=bits))  # type: ignore[arg-type]
    plain = _Plain(sites, run_id=2)
    for grid in (secure, plain):
        made = STRATEGIES[strategy](fraction_train=1.0, fraction_evaluate=0.0)
        ended = made.start(grid=grid, initial_arrays=arrays_from_state(_initial()), num_rounds=rounds)
        grid.models.append(state_from_arrays(ended.arrays))
    worst = Apart(rounds=rounds, repeats=secure.repeats, difference=0.0, bound=1.0)
    pairs = zip(secure.models[1:], plain.models[1:], bounds(made, sites, secure, plain), strict=True)
    for one, other, bound in pairs:
        for name in SHAPES:
            apart = np.abs(one[name].astype(np.float64) - other[name])
            place = int(np.argmax(apart / bound[name]))
            found = replace(worst, difference=float(apart[place]), bound=float(bound[name][place]))
            worst = max(worst, found, key=lambda one: one.ratio)
    return worst


def _initial() -> ModelState:
    rng = np.random.default_rng(0)
    return ModelState.from_arrays({name: rng.standard_normal(size).astype(np.float32) for name, size in SHAPES.items()})


class Sites(ExchangeBackend):
    """The sites' data: a target each, near a common one but for its own taste and a few elements far off.

    That of the last site, the largest, is three times as far off.
    """

    def __init__(self, story: Story) -> None:
        self.story = story
        rng = np.random.default_rng(1)
        self.targets: list[dict[str, NDArray[np.float32]]] = []
        common = {name: rng.standard_normal(size) for name, size in SHAPES.items()}
        for site in range(len(story.sizes)):
            taste, own = 3.0 if site == len(story.sizes) - 1 else 1.0, {}
            for name, size in SHAPES.items():
                scale = taste * 10.0 ** rng.uniform(-3, 0, size) * np.where(rng.random(size) < SPIKES, 30.0, 1.0)
                own[name] = (common[name] + scale * rng.standard_normal(size)).astype(np.float32)
            self.targets.append(own)

    def nodes(self) -> list[int]:
        """All of them; who is there in a round the grids say."""
        return [*range(1, len(self.story.sizes) + 1)]

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """Nobody waits here."""

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """The grids here deliver themselves."""
        raise NotImplementedError

    def report_figures(self, figures: FiguresFound) -> None:
        """Nobody looks at it here."""

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """Likewise."""
        raise NotImplementedError

    def trained(self, site: int, model: ModelState) -> ModelState:
        """The local training of one site, in float32."""
        rate = np.float32(APPROACH)
        return ModelState.from_arrays(
            {name: value + rate * (self.targets[site][name] - value) for name, value in model.items()}
        )


@dataclass(eq=False)
class _Grid(ExchangeGrid):
    """One run: the models that the strategy sent, and from round to round who was there."""

    models: list[ModelState] = field(default_factory=list, init=False)

    @property
    def sites(self) -> Sites:
        assert isinstance(self.backend, Sites)
        return self.backend

    def present(self) -> Sequence[int]:
        """The sites of the round that comes, or is."""
        return self.sites.story.present(len(self.models) + 1)

    def get_node_ids(self) -> Iterable[int]:
        return [site + 1 for site in self.present()]

    def deliver(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        if not messages:  # nobody evaluates
            return []
        (record,) = messages[0].content.array_records.values()
        model = self.conform(record)
        self._layout = model.layout
        replies = self.answers(model, self.present())
        self.models.append(model)
        return [
            Message(
                RecordDict({"arrays": arrays_from_state(state), "metrics": MetricRecord({"num-examples": examples})}),
                reply_to=message,
            )
            for message, (state, examples) in zip(messages, replies, strict=False)
        ]

    @abstractmethod
    def answers(self, model: ModelState, present: Sequence[int]) -> list[tuple[ModelState, int]]:
        """What the strategy gets: models, and the examples behind each."""


@dataclass(eq=False)
class _Plain(_Grid):
    """Every site's model."""

    def answers(self, model: ModelState, present: Sequence[int]) -> list[tuple[ModelState, int]]:
        return [(self.sites.trained(site, model), self.sites.story.sizes[site]) for site in present]


@dataclass(eq=False)
class _Secure(_Grid):
    """One mean, through the codec; what was too large is asked for again. bounds: of the codec, round by round."""

    settings: JobSettings = field(kw_only=True)
    repeats: int = field(default=0, init=False)
    bounds: list[Mapping[str, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._plan = EncodingPlan(self.settings)

    def answers(self, model: ModelState, present: Sequence[int]) -> list[tuple[ModelState, int]]:
        kept = [(self.sites.trained(site, model), self.sites.story.sizes[site]) for site in present]
        for _ in range(MOST_REPEATS):
            encoding = self._plan.encoding("train", model.layout, len(present))
            assert isinstance(encoding, Encoding)
            try:
                return [self._mean(encoding, model, kept)]
            except UpdateTooLarge as error:
                self.repeats += 1
                self._plan.learn_overflow("train", encoding, error.statistics)
            except RoundingTooCoarse as error:
                self.repeats += 1
                self._plan.learn_coarse("train", encoding, error.statistics)
        raise AssertionError("the scales do not become large enough")

    def _mean(
        self, encoding: Encoding, model: ModelState, kept: Sequence[tuple[ModelState, int]]
    ) -> tuple[ModelState, int]:
        total = np.zeros(encoding.words, np.uint64)
        for local, examples in kept:
            sent = encode(encoding, base=model, local=local, examples=examples, metrics={}, randomness=os.urandom)
            total += sent.words
        decoded = decode(encoding, total, survivors=len(kept), base=model)
        self._plan.learn("train", encoding, decoded)
        self.bounds.append(error_bound_of(encoding, decoded, model, *zip(*kept, strict=True)))
        assert decoded.state is not None
        return decoded.state, decoded.examples


# --- the bound --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Element:
    """One tensor along the plain run, and how far the secure one may be from it: model, moments, each [size]."""

    apart: Vector
    first: Vector
    second: Vector
    first_apart: Vector
    second_apart: Vector


def bounds(strategy: FedAvg, sites: Sites, secure: _Secure, plain: _Plain) -> list[Mapping[str, Vector]]:
    """How far the models may be apart after each round, by tensor."""
    found: list[dict[str, Vector]] = [{} for _ in secure.bounds]
    for name, size in SHAPES.items():
        state = Element(*(np.zeros(size) for _ in range(5)))
        for number, codec in enumerate(secure.bounds, start=1):
            before, present = plain.models[number - 1][name].astype(np.float64), sites.story.present(number)
            weights = [sites.story.sizes[site] for site in present]
            targets = [sites.targets[site][name].astype(np.float64) for site in present]
            delta = APPROACH * (np.average(targets, axis=0, weights=weights) - before)
            largest = np.abs(before) + np.max(np.abs(targets), axis=0)
            # Three operations at each site of either run, and Flower's mean of as many terms as there are sites.
            rounding = codec[name] + (len(present) + 12) * UNIT * largest
            follow(state, strategy, number, delta, largest, rounding)
            found[number - 1][name] = state.apart.copy()
    return list(found)


def follow(state: Element, strategy: FedAvg, number: int, delta: Vector, largest: Vector, rounding: Vector) -> None:
    """One round. delta: the exact mean update of the plain run; rounding: how far both may be from their exact ones."""
    if not isinstance(strategy, FedOpt):
        state.apart = (1 - APPROACH) * state.apart + rounding
        return
    delta_apart = APPROACH * state.apart + rounding
    state.first = strategy.beta_1 * state.first + (1 - strategy.beta_1) * delta
    state.first_apart = strategy.beta_1 * state.first_apart + (1 - strategy.beta_1) * delta_apart
    state.first_apart += SLACK * UNIT * np.abs(state.first)
    _follow_second(state, strategy, delta, delta_apart)
    rate = strategy.eta
    if isinstance(strategy, FedAdam):
        rate *= np.sqrt(1 - strategy.beta_2 ** (number + 1)) / (1 - strategy.beta_1 ** (number + 1))
    low, middle, high = (
        1 / (np.sqrt(np.maximum(state.second + sign * state.second_apart, 0)) + strategy.tau) for sign in (1, 0, -1)
    )
    step_apart = state.first_apart * high + np.abs(state.first) * np.maximum(high - middle, middle - low)
    state.apart = state.apart + rate * step_apart + SLACK * UNIT * (largest + rate * np.abs(state.first) * high)


def _follow_second(state: Element, strategy: FedOpt, delta: Vector, delta_apart: Vector) -> None:
    square, square_apart = delta**2, 2 * np.abs(delta) * delta_apart + delta_apart**2
    added = 1 - strategy.beta_2
    if isinstance(strategy, FedYogi):
        turned = np.abs(state.second - square) <= state.second_apart + square_apart
        state.second_apart = state.second_apart + added * (square_apart + 2 * turned * (square + square_apart))
        state.second = state.second - added * square * np.sign(state.second - square)
    else:
        state.second_apart = strategy.beta_2 * state.second_apart + added * square_apart
        state.second = strategy.beta_2 * state.second + added * square
    state.second_apart += SLACK * UNIT * np.abs(state.second)
