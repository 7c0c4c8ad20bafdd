"""The federation under attack: real agents with real policies and the apps of `examples`, and masked sums.

The server is the adversary's. Where an attack needs no more than an operator, it leads each exchange as an honest
server does; where it needs a server that lies, the attack says so.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from support.worlds.asks import Ask  # type: ignore[import-not-found]
from support.worlds.clients import at_work  # type: ignore[import-not-found]
from support.worlds.memory_transport import MemoryTransport  # type: ignore[import-not-found]
from support.worlds.server import Adversary, Release  # type: ignore[import-not-found]

from benchmarks.common import EXAMPLES
from client_app.exchange.first_model import NoFirstModels
from client_app.ranks.messages import LocalAnswer
from fedcore.comparison.workers.problem import Problem
from fedcore.data.types import Split
from fedcore.federation import ClientKit, Policy, provision
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.first_model import AppModel
from fedcore.federation.policy import ANY_MODEL
from fedcore.flower.app import FlowerApp
from fedcore.flower.clientside import ClientRunner
from fedcore.flower.node.config import share_of_client
from fedcore.flower.records import state_from_arrays
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

Vector = NDArray[np.float64]
Tensors = dict[str, NDArray[np.float64]]
NOISE = {"dp-epsilon": 8.0, "dp-rounds": 15}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """What the owners of a federation have in policy.toml, and whether their app adds noise."""

    name: str
    policy: Callable[[int], Policy]
    noise: bool = False


STOCK = Owners(name="stock", policy=Policy.default)
STRICT = Owners(name="strict", policy=Policy.strict, noise=True)
OWN = Owners(name="own", policy=Policy.own)
NOISE_ALONE = Owners(
    name="noise alone", policy=lambda clients: replace(Policy.strict(clients), first_models=(ANY_MODEL,)), noise=True
)
"""The strict policy of owners who take any first model: what is left is the noise."""
WORLDS = (STOCK, STRICT, OWN, NOISE_ALONE)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An example whose clients are attacked.

    clip_norm: of its updates if there is noise.
    changes: settings that its owners agreed to besides those of the example.
    """

    name: str
    clients: int
    clip_norm: float
    partition: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def app(self) -> FlowerApp:
        """The example as it is."""
        return FlowerApp.load(EXAMPLES / self.name)

    @cached_property
    def run_config(self) -> dict[str, Any]:
        """That its owners agreed to."""
        return {**self.app.run_config, "partition": self.partition}

    @cached_property
    def problem(self) -> Problem:
        """The data and the training."""
        return Problem.load(self.app, config=self.run_config, sites=self.clients)

    @cached_property
    def first_model(self) -> ModelState:
        """The app's own."""
        return state_from_arrays(self.problem.app.initial_arrays(self.run_config))

    @cached_property
    def records(self) -> Vector:
        """All training records [records, features]."""
        parts = [self.problem.training(site) for site in range(self.clients)]
        rows = [part.x.reshape(len(part.x), -1) for part in parts if isinstance(part, Split)]
        return np.concatenate(rows).astype(np.float64)

    def settings(self, owners: Owners) -> dict[str, Any]:
        """Those of the app, with noise if its owners ask for it; a buffered run cannot have any."""
        own = {**self.app.settings.to_mapping(), **self.changes}
        return {**own, **NOISE, "clip-norm": self.clip_norm} if owners.noise and not self.changes else own


def digits(clients: int, **changes: Any) -> Subject:
    """scikit-learn's digits: 1,438 training records of 64 pixels, an MLP with 128 hidden units."""
    return Subject(name="digits", clients=clients, clip_norm=1.0, partition="iid", changes=changes)


def hospitals() -> Subject:
    """heart_disease: 486 training records of 13 standardised features at four hospitals, logistic regression."""
    return Subject(name="heart_disease", clients=4, clip_norm=0.1, partition="natural")


class _AppWork:
    """A client's ranks, in this process: the app itself runs on the client's own data."""

    def __init__(self, subject: Subject, client: int) -> None:
        node = share_of_client(client, subject.clients)
        self._runner = ClientRunner(app=subject.app, client_id=client, node_config=node, durable=False)
        self.update: Vector = np.zeros(0)
        """The last weighted update that it made, which nobody else should know [parameters]."""

    async def run(self, task: Task, model: Path | None, out: Path, *, aggregated_round: int = 0) -> LocalAnswer:
        """As a rank does it."""
        self._runner.aggregated_round = aggregated_round
        base = ModelState.open(model) if model else None
        result = self._runner.run(task, base)
        result.save(out)
        if base is not None and result.trained:
            self.update = (flat(ModelState.open(out)) - flat(base)) * result.examples
        return LocalAnswer(examples=result.examples, metrics=dict(result.metrics), trained=result.trained)


def flat(tensors: Mapping[str, Any]) -> Vector:
    """All tensors one after the other, by name [parameters]."""
    return np.concatenate([np.asarray(tensors[name], np.float64).reshape(-1) for name in sorted(tensors)])


@dataclass(frozen=True, slots=True)
class _OwnModel(NoFirstModels):
    """What the clients derive: the app's own first model."""

    sha256: str

    async def of(self, task: Task, app_sha256: str, members: Any) -> AppModel:
        """In every run."""
        del task, app_sha256, members
        return AppModel(sha256=self.sha256)


@dataclass(slots=True, kw_only=True)
class Attacked:
    """A federation that answers what its owners allow. exchanges: how many were asked for."""

    subject: Subject
    owners: Owners
    adversary: Adversary
    lead: Callable[[Any], Any]
    works: Mapping[int, _AppWork]
    exchanges: int = 0
    _runs: int = field(default=0, init=False)

    def ask(self, state: ModelState | None = None, **fields: Any) -> Ask:
        """A training, in a run of its own unless `run` is named; what is not said is as the owners agreed."""
        self._runs += 1
        told: dict[str, Any] = {
            "run": f"run-{self._runs}",
            "state": self.subject.first_model if state is None else state,
            "run_config": self.subject.run_config,
            "settings": self.subject.settings(self.owners),
            "cohort": tuple(range(1, self.subject.clients + 1)),
        }
        for name in ("run_config", "settings"):
            fields[name] = {**told[name], **fields.get(name, {})}
        return Ask(**{**told, **fields})

    async def sum(self, ask: Ask) -> Release | None:
        """The sum of an exchange; None if there is none, or it cannot be read."""
        self.exchanges += 1
        (release,) = await self.lead(self.adversary.lead([ask]))
        return release if release is not None and release.decoded is not None else None

    async def update(self, ask: Ask) -> Tensors | None:
        """The sum of the weighted updates, by tensor; None if there is none."""
        release = await self.sum(ask)
        if release is None or release.decoded.state is None:
            return None
        weight = len(release.survivors) if self.owners.noise else release.decoded.examples
        base, state = ask.state, release.decoded.state
        return {name: (np.asarray(state[name], float) - np.asarray(base[name], float)) * weight for name in state}

    async def trains(self, ask: Ask, versions: Mapping[int, tuple[int, ModelState]]) -> bool:
        """Whether these clients trained for a later sum, each from its number and model."""
        done: bool = await self.lead(self.adversary.hand_out(ask, versions))
        return done

    @property
    def updates(self) -> list[Vector]:
        """The last one of each client, which the attacker does not know."""
        return [work.update for work in self.works.values()]

    @property
    def checks(self) -> tuple[str, ...]:
        """By which checks something was refused, in order."""
        named = [check for refusals in self.adversary.refusals for _, check in sorted(refusals.items())]
        return tuple(dict.fromkeys(named))


@asynccontextmanager
async def attacked(subject: Subject, owners: Owners, **policy: Any) -> AsyncIterator[Attacked]:
    """The clients of a subject at work, for as long as the block lasts. policy: what their owners changed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rules = replace(owners.policy(subject.clients), **policy)
        made = provision(
            folder / "federation", name="attacked", clients=subject.clients, now=datetime.now(UTC), policy=rules
        )
        kits = {number: ClientKit.load(path) for number, path in enumerate(made.clients, start=1)}
        agreed = AppAgreement(
            run_config=subject.run_config, settings=JobSettings.from_mapping(subject.settings(owners))
        )
        own = folder / "own.safetensors"
        subject.first_model.save(own)
        first_models = _OwnModel(ModelState.open(own).sha256())
        adversary = Adversary(kits, folder)
        works = {number: _AppWork(subject, number) for number in kits}

        def parts(number: int) -> dict[str, Any]:
            transport = MemoryTransport(number, adversary)
            return {"transport": transport, "work": works[number], "first_models": first_models}

        async with at_work(kits, folder / "state", agreed, parts) as crew:
            yield Attacked(subject=subject, owners=owners, adversary=adversary, lead=crew.until, works=works)
