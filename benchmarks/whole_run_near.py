"""Nearly the same model: what the groups rule costs honest runs, and what it leaves to who runs an app twice.

A model's name here is the SHA-256 of its state. Clients decide by the product's own code: sketches, histories of
models, the groups rule.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.common import EXAMPLES, Table
from benchmarks.hospitals import EVERYBODY, RATES, Closeness, Hospitals, Vector
from fedcore.errors import RunFailed
from fedcore.federation import Policy
from fedcore.federation.admission.checks import DIFFERENCING
from fedcore.federation.admission.releases import smallest_group
from fedcore.federation.near_models import ModelHistory
from fedcore.federation.policy import ANY_KEY, NEAR_MODELS
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import Sketcher
from fedcore.system.assignments import override
from fedcore.wire.events import ClientDropped, ExchangeDone, RunEvent

LEAST = 3
ROUNDS_OF_A_RUN = 15
ATTEMPTS = 2
DROP = 0.1
FRACTIONS = (0.0, NEAR_MODELS, 0.9)
TWICE = (2, 7, 14)
RUNS: Sequence[tuple[str, int, Mapping[str, float]]] = (
    ("heart_disease", 4, {}),
    ("heart_disease", 4, {"lr": 0.1, "num-server-rounds": 40}),
    ("digits", 4, {}),
    ("digits", 10, {}),
)


@dataclass(slots=True)
class Client:
    """What clients that are always there remember of several runs, and whether they agree to a sum."""

    within: float
    models: ModelHistory = field(default_factory=ModelHistory)
    _sketcher: Sketcher = field(default_factory=lambda: Sketcher(b"benchmark"))
    _sums: dict[str, set[frozenset[int]]] = field(default_factory=dict)

    def have(self, run: str, hospitals: Hospitals, weights: Vector) -> str:
        """A round begins with a model; returns its name."""
        state = hospitals.state_of(weights)
        name = state.sha256()
        sketch = self._sketcher.sketch(state)
        assert sketch is not None
        self.models.book.add(name, sketch)
        self.models.add(run, "train", name)
        return name

    def agrees(self, model: str, survivors: Sequence[int]) -> bool:
        """Whether a sum is agreed to, which then counts."""
        alike = {model, *(self.models.near("train", model, self.within) if self.within else ())}
        known = {sums for one in alike for sums in self._sums.get(one, set())}
        if smallest_group({*known, frozenset(survivors)}) < LEAST:
            return False
        self._sums.setdefault(model, set()).add(frozenset(survivors))
        return True


def attacks(settings: JobSettings, rounds: Sequence[int]) -> Table:
    """The app twice, all four hospitals in the first run; one is lost in one of these rounds of the second run."""
    one, two = Hospitals(RATES[1], settings), Hospitals(RATES[1], settings)
    first, second = (_trajectory(hospitals, max(rounds)) for hospitals in (one, two))
    rows = []
    for number in rounds:
        distance = float(((first[number - 1] - second[number - 1]) ** 2).sum() ** 0.5)
        step = float(((first[number] - first[number - 1]) ** 2).sum() ** 0.5)
        found = []
        for site in EVERYBODY:
            full, _ = one.sum(first[number - 1], EVERYBODY, number)
            partial_, _ = two.sum(second[number - 1], _without(site), number)
            found.append(Closeness.of(full - partial_, one.update(first[number - 1], site, number)))
        refused = [not _agreed_twice(one, (first, second), number, within) for within in (0.0, NEAR_MODELS)]
        answers = ["refused" if no else f"a sum, {median(found)}" for no in refused]
        rows.append((str(number), f"{distance / step:.1g}", *answers))
    return Table(
        title="The same app twice, an honest server: one hospital is lost in one round of the second run",
        header=("round", "distance in steps", "near-models = 0", f"near-models = {NEAR_MODELS:g}"),
        rows=tuple(rows),
    )


def _agreed_twice(hospitals: Hospitals, runs: Sequence[Sequence[Vector]], number: int, within: float) -> bool:
    """Whether the clients agree to the sum over three in this round of the second run."""
    client = Client(within)
    for weights in runs[0]:
        client.agrees(client.have("one", hospitals, weights), EVERYBODY)
    model = ""
    for weights in runs[1][:number]:
        model = client.have("two", hospitals, weights)
    return client.agrees(model, EVERYBODY[:3])


def near_enough(hospitals: Hospitals, move: float) -> str:
    """What stock clients say to a sum over three, from a model of another run that a fraction of a step moved."""
    first = _trajectory(hospitals, 1)
    client = Client(NEAR_MODELS)
    names = [client.have("one", hospitals, weights) for weights in first]
    client.agrees(names[0], EVERYBODY)
    moved = first[0] + move * (first[1] - first[0])
    return "agree" if client.agrees(client.have("two", hospitals, moved), EVERYBODY[:3]) else "differencing"


def run_twice(settings: JobSettings, seeds: int, rounds: int) -> Table:
    """The share of rounds that clients refuse, if one in ten is lost a round: in a first run, and in the app's next."""
    hospitals = Hospitals(RATES[1], settings)
    rows = []
    for within in FRACTIONS:
        runs = [list(_honest(hospitals, Client(within), rounds, random.Random(seed))) for seed in range(seeds)]
        rows.append((f"{within:g}", *(_rounds(run) for run in zip(*runs, strict=True))))
    return Table(
        title=f"heart_disease, {rounds} rounds with {ATTEMPTS} attempts, one in ten lost: rounds, refusals",
        header=("near-models", "first run", "the same app again"),
        rows=tuple(rows),
    )


@dataclass(slots=True)
class Course:
    """How an honest run went."""

    rounds: int = 0
    refused: int = 0


def _honest(hospitals: Hospitals, client: Client, rounds: int, chance: random.Random) -> Iterator[Course]:
    for run in ("one", "two"):
        course, weights = Course(), hospitals.start
        yield course
        for number in range(1, rounds + 1):
            survivors = _survivors(client, client.have(run, hospitals, weights), chance, course)
            if survivors is None:
                break
            told, examples = hospitals.sum(weights, survivors, number)
            weights = weights + told / examples
            course.rounds += 1


def _survivors(client: Client, model: str, chance: random.Random, course: Course) -> tuple[int, ...] | None:
    """Who is in the sum of a round; None if each attempt failed."""
    for _ in range(ATTEMPTS):
        here = tuple(site for site in EVERYBODY if chance.random() >= DROP)
        if len(here) < LEAST:
            continue
        if client.agrees(model, here):
            return here
        course.refused += 1
    return None


def _rounds(courses: Iterable[Course]) -> str:
    listed = list(courses)
    return (
        f"{sum(one.rounds for one in listed) / len(listed):.1f}, {sum(one.refused for one in listed) / len(listed):.1f}"
    )


def simulated(seeds: int, changes: Mapping[str, float]) -> Table:
    """The same by the simulator, whose owners check everything: other apps, with evaluations.

    changes: of the run configs.
    """
    rows = []
    for example, clients, config in RUNS if seeds > 1 else RUNS[:1]:
        told = ", ".join(f"{key} {value:g}" for key, value in config.items())
        name = f"{example}, {clients} clients" + (f", {told}" if told else "")
        for within in (0.0, NEAR_MODELS):
            counts = [_simulate(example, clients, {**config, **changes}, within, seed) for seed in range(seeds)]
            done, refused = (sum(column) for column in zip(*counts, strict=True))
            rows.append((name, f"{within:g}", str(done), str(refused)))
    return Table(
        title="By the simulator, one in ten lost: sums of training and evaluation, attempts with `differencing`",
        header=("run", "near-models", "sums", "refused"),
        rows=tuple(rows),
    )


def _simulate(example: str, clients: int, config: Mapping[str, float], within: float, seed: int) -> tuple[int, int]:
    app = FlowerApp.load(EXAMPLES / example)
    events: list[RunEvent] = []
    policy = replace(Policy.default(clients), near_models=within, allow_config={ANY_KEY: True})
    simulation = Simulation(
        app=app,
        clients=clients,
        run_config=override(app.run_config, config, "the run config"),
        settings=app.settings,
        drop=DROP,
        seed=seed,
        policy=policy,
        emit=events.append,
    )
    with contextlib.suppress(RunFailed):
        simulation.run()
    done = sum(isinstance(event, ExchangeDone) for event in events)
    gone = [event for event in events if isinstance(event, ClientDropped)]
    return done, len({event.exchange for event in gone if DIFFERENCING in event.reason})


def _trajectory(hospitals: Hospitals, rounds: int) -> list[Vector]:
    """The models of a run in which nobody is lost."""
    models = [hospitals.start]
    for number in range(1, rounds + 1):
        told, examples = hospitals.sum(models[-1], EVERYBODY, number)
        models.append(models[-1] + told / examples)
    return models


def _without(site: int) -> tuple[int, ...]:
    return tuple(other for other in EVERYBODY if other != site)


def median(found: Sequence[Closeness]) -> Closeness:
    """Of each number apart."""
    return Closeness(
        statistics.median(one.error for one in found),
        statistics.median(one.cosine for one in found),
    )
