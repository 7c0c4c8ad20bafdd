"""The runs behind the tables of published results: each is kept in a file of its own, and none is run twice.

A run is a simulation (`fedcore.simulation`, the state machines of the real server and clients) of one of the examples,
whose model the server tests after every round. It ends when the target is reached, when its rounds are over, or when
its time is. What it found is kept after every round, so that nothing is lost with a process that ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import APPS, EXAMPLES, say
from fedcore.errors import FedcoreError
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.workers.executors import Engine, make_executor
from fedcore.system.assignments import override
from fedcore.system.files import remove_tree, write_file
from fedcore.wire.base import Scalar
from fedcore.wire.events import ExchangeDone, FiguresFound, RunEvent

Ended = Literal["target", "rounds", "time", ""]
_SAVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulation.

    app: an example, or an app of the benchmarks. config, settings: over the app's. target: test accuracy in per cent.
    rounds: at most. Two runs that are equal in all of this are the same run.
    """

    name: str
    app: str
    clients: int
    rounds: int
    seed: int
    config: Mapping[str, Scalar]
    settings: Mapping[str, Any] = field(default_factory=dict)
    target: float | None = None

    @property
    def key(self) -> str:
        """The name of its files: the same for all lengths of the run, which go on from one another."""
        facts = {name: value for name, value in asdict(self).items() if name not in ("rounds", "target", "name")}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]
        return f"{re.sub(r'[^a-z0-9]+', '-', self.name.lower()).strip('-')}-{digest}"

    @property
    def folder(self) -> Path:
        """Where the app is."""
        return EXAMPLES / self.app if (EXAMPLES / self.app).is_dir() else APPS / self.app

    @property
    def aggregation(self) -> str:
        """As tables name it: "plain", or "secure" with the bits of a field where they are not the app's."""
        if self.settings.get("aggregation") == "plain":
            return "plain"
        if groups := self.settings.get("groups"):
            return f"secure, {groups} groups"
        return f"secure, {bits} bits" if (bits := self.settings.get("field-bits")) else "secure"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a run found. curve: test accuracy in per cent, by round from 0 on; losses: likewise, the mean.

    seconds: of the whole run. exchange_seconds: of its exchanges. ended: why; empty while it goes on. failure: the
    error that ended it, if one did.
    """

    curve: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    exchange_seconds: float = 0.0
    ended: Ended = ""
    failure: str = ""
    date: str = ""

    @property
    def rounds(self) -> int:
        return max(0, len(self.curve) - 1)

    @property
    def best(self) -> float:
        """Of all rounds, as the published tables take it."""
        return max(self.curve)

    def late(self, rounds: int = 10) -> float:
        """Mean of the last rounds."""
        last = self.curve[1:][-rounds:]
        return sum(last) / len(last)

    def answers(self, run: Run) -> bool:
        """Whether there is nothing left to run."""
        reached = run.target is not None and rounds_to(self.curve, run.target) is not None
        return reached or self.rounds >= run.rounds


def rounds_to(curve: Sequence[float], target: float) -> float | None:
    """Rounds until the best accuracy so far reaches the target, between rounds by a straight line; None if it does not.

    curve: by round from 0 on. As in McMahan et al. (2017), section 3.
    """
    if curve and curve[0] >= target:
        return 0.0
    best = curve[0] if curve else 0.0
    for number, (_, value) in enumerate(pairwise(curve), start=1):
        if value >= target:
            return number - 1 + (target - best) / (value - best)
        best = max(best, value)
    return None


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folder in which outcomes are kept, a small file for each run."""

    folder: Path

    def outcome(self, run: Run) -> Outcome | None:
        """What is known of a run, be it cut short; None if it never had a round."""
        try:
            kept = json.loads((self.folder / f"{run.key}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        outcome = Outcome(**kept["outcome"])
        return outcome if outcome.rounds else None

    def keep(self, run: Run, outcome: Outcome) -> None:
        """In one step: a reader never sees half of it. Figures are rounded as tables show them, and to spare."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rounded = {
            **asdict(outcome),
            "curve": [round(value, 3) for value in outcome.curve],
            "losses": [float(f"{value:.5g}") for value in outcome.losses],
            "seconds": round(outcome.seconds, 1),
            "exchange_seconds": round(outcome.exchange_seconds, 1),
        }
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in rounded.items())
        write_file(
            self.folder / f"{run.key}.json", f'{{"run": {json.dumps(asdict(run))},\n"outcome": {{\n{lines}}}}}\n'
        )


@dataclass(slots=True)
class Runner:
    """Carries out one run, and keeps what it finds.

    workers: processes that train its clients; 1 for this one alone. states: where a run that its time cuts leaves what
    it takes to go on, in a folder of its own; None for a run that starts over.
    """

    run: Run
    shelf: Shelf
    deadline: float
    workers: int = 1
    states: Path | None = None
    outcome: Outcome = field(default_factory=Outcome)
    _started: float = 0.0
    _saved: float = 0.0

    def carry_out(self) -> Outcome:
        """The whole simulation, or the rest of one that was cut; raises what it raises."""
        self._started = time.monotonic()
        run, state = self.run, self._state()
        app = FlowerApp.load(run.folder)
        changes = {**run.config, "seed": run.seed, "num-server-rounds": run.rounds, "fraction-evaluate": 0.0}
        engine: Engine = "process" if self.workers > 1 else "inline"
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            make_executor(engine, app, run.clients, self.workers, 0) as executor,
        ):
            simulation = Simulation(
                app=app,
                clients=run.clients,
                run_config=override(app.run_config, changes, "the run config"),
                settings=JobSettings.from_mapping({**app.settings.to_mapping(), **run.settings}),
                executor=executor,
                state=state,
                emit=self.hear,
                enough=self.test,
            )
            try:
                simulation.run()
            except FedcoreError as error:
                self.outcome.failure = str(error)
                self.save()
                raise
        self.outcome.ended = self.outcome.ended or "rounds"
        self.save()
        if state is not None and self.outcome.ended != "time":
            remove_tree(state)
        return self.outcome

    def _state(self) -> Path | None:
        """The folder of this run alone; what it took before counts with what it takes."""
        if self.states is None:
            return None
        state = self.states / f"{self.run.key}-{self.run.rounds}"
        if state.is_dir() and (before := self.shelf.outcome(self.run)) is not None:
            self._started -= before.seconds
        return state

    def hear(self, event: RunEvent) -> None:
        """An event of the simulation; a run that goes on tells again what it told before."""
        if isinstance(event, ExchangeDone):
            self.outcome.exchange_seconds += event.seconds
        elif isinstance(event, FiguresFound) and event.source == "server":
            self.outcome.curve.append(100 * float(str(event.metrics["eval_acc"])))
            self.outcome.losses.append(float(str(event.metrics["eval_loss"])))

    def test(self, found: FiguresFound) -> bool:
        """Whether the run ends with what the server's test after a round found, of which `hear` has heard."""
        outcome, run = self.outcome, self.run
        if found.source != "server":
            return False
        if run.target is not None and rounds_to(outcome.curve, run.target) is not None:
            outcome.ended = "target"
        elif found.server_round < run.rounds and time.time() > self.deadline:
            outcome.ended = "time"
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()
            say(
                f"{run.name}, {run.aggregation}: round {found.server_round} of {run.rounds}, "
                f"accuracy {outcome.curve[-1]:.2f}, best {outcome.best:.2f}, {outcome.seconds:.0f} s"
            )
        return outcome.ended != ""

    def save(self) -> None:
        self._saved = time.monotonic()
        self.outcome.seconds = self._saved - self._started
        self.outcome.date = datetime.now(UTC).date().isoformat()
        before = self.shelf.outcome(self.run)
        if before is None or before.rounds <= self.outcome.rounds or self.outcome.ended == "target":
            self.shelf.keep(self.run, self.outcome)
