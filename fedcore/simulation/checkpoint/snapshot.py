"""Checkpoint of a simulated run, written after each exchange.

What grows with the run (the transcript's chain, the owners' histories, the clients' Contexts) is written as far as it
has changed since the last time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedcore.errors import ConfigurationError
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.simulation.checkpoint.serialization import from_json, to_json
from fedcore.simulation.dropouts import RandomDrops
from fedcore.simulation.models import BestModel
from fedcore.state import ModelState
from fedcore.wire.tasks import KeptTask, Task

if TYPE_CHECKING:
    from fedcore.flower.clientside import Answer
    from fedcore.simulation.run import Simulation
    from fedcore.simulation.workers.executor import ClientExecutor, PlainTask


@dataclass(slots=True)
class RecordingExecutor:
    """A `ClientExecutor` that notes who has worked. counted: client -> the last round whose sum has its update."""

    executor: ClientExecutor
    worked: set[int] = field(default_factory=set)
    counted: dict[int, int] = field(default_factory=dict)

    def run(self, task: Task, model: ModelState | None, clients: Sequence[int]) -> Iterator[tuple[int, LocalResult]]:
        """As `ClientExecutor`."""
        self.worked.update(clients)
        return self.executor.run(task, model, clients)

    def answer(self, asked: Mapping[int, PlainTask]) -> Iterator[tuple[int, Answer | Exception]]:
        """As `ClientExecutor`."""
        self.worked.update(asked)
        return self.executor.answer(asked)

    def count(self, server_round: int, clients: Sequence[int]) -> None:
        """As `ClientExecutor`."""
        self.counted.update(dict.fromkeys(clients, server_round))
        self.executor.count(server_round, clients)

    def on_warning(self, warn: Callable[[str], None]) -> None:
        """As `ClientExecutor`."""
        self.executor.on_warning(warn)

    @property
    def processes(self) -> int:
        """As `ClientExecutor`."""
        return self.executor.processes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def leave(self, folder: Path, clients: Sequence[int]) -> list[int]:
        """As `ClientExecutor`."""
        return self.executor.leave(folder, clients)

    def take_up(self, states: Mapping[int, Path]) -> None:
        """As `ClientExecutor`."""
        self.executor.take_up(states)

    def close(self) -> None:
        """As `ClientExecutor`."""
        self.executor.close()


@dataclass(slots=True, kw_only=True)
class KeptRun:
    """Writes down a simulation step by step. Its private parts are meant: nobody else reads or writes them."""

    simulation: Simulation
    _ends: list[tuple[Task, ExchangeOutcome]] = field(default_factory=list, init=False)
    _links: int = field(default=0, init=False)
    _entered: dict[int, int] = field(default_factory=dict, init=False)
    _contexts: dict[int, Path] = field(default_factory=dict, init=False)
    _superseded: list[Path] = field(default_factory=list, init=False)
    _best: BestModel | None = field(default=None, init=False)
    _best_file: Path | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.simulation._aggregator.on_end = lambda task, end: self._ends.append((task, end))

    def remember(self, place: Path) -> dict[str, Any]:
        """All that has changed since the last time, as JSON; what is large goes into the folder `place`."""
        run = self.simulation
        chance = self._fates()._chance
        owners, virtual = run._owners, run._virtual
        changed = {i: one for i, one in owners._histories.items() if one.entered != self._entered.get(i, 0)}
        self._entered.update({i: one.entered for i, one in changed.items()})
        links, self._links = owners.chain.links[self._links :], len(owners.chain.links)
        return {
            "ends": self._take_ends(),
            "plain": run._plain_exchanges.count,
            "fates": to_json(chance.getstate()),
            "virtual": [virtual.clock.now, virtual._lap, virtual._polls] if virtual is not None else None,
            "links": to_json(links),
            "histories": to_json(changed),
            "judged": [run._state.selection.missing, run._models.warned],
            **self._models(place),
            **self._states(place),
        }

    def recall(self, kept: Mapping[str, Any], place: Path) -> None:
        """Put back what one step has kept; to be called for each of them in order."""
        run = self.simulation
        for task, end in kept["ends"]:
            run._state.take(KeptTask.model_validate(task), ExchangeOutcome.from_json(end))
        run._state.take_groups()
        run._plain_exchanges.count = kept["plain"]
        self._fates()._chance.setstate(from_json(kept["fates"]))
        if run._virtual is not None:
            run._virtual.clock.now, run._virtual._lap, run._virtual._polls = kept["virtual"]
        run._owners.chain.links += from_json(kept["links"])
        histories = from_json(kept["histories"])
        run._owners._histories.update(histories)
        run._state.selection.missing, run._models.warned = kept["judged"]
        self._links = len(run._owners.chain.links)
        self._entered.update({i: one.entered for i, one in histories.items()})
        self._recall_models(kept, place)
        self._executor().counted.update({int(client): number for client, number in kept["counted"].items()})
        self._contexts.update({client: place / f"{client}.state" for client in kept["contexts"]})

    def take_up(self) -> None:
        """Give the executor what its clients had kept, after the last step."""
        executor = self._executor()
        for client, number in executor.counted.items():
            executor.executor.count(number, [client])
        executor.take_up(self._contexts)

    def forget_superseded(self, place: Path) -> None:
        """Remove Contexts that newer ones have replaced, once these are kept."""
        for file in self._superseded:
            file.unlink(missing_ok=True)
        self._superseded.clear()
        if not any(place.iterdir()):
            shutil.rmtree(place)

    def _take_ends(self) -> list[Any]:
        """The exchanges that have ended since the last time, from which the run's state is folded again."""
        ends, self._ends = self._ends, []
        return [[task.model_dump(mode="json", exclude={"places"}), end.to_json()] for task, end in ends]

    def _states(self, place: Path) -> dict[str, Any]:
        executor = self._executor()
        left = executor.leave(place, sorted(executor.worked))
        executor.worked.clear()
        self._superseded += [self._contexts[client] for client in left if client in self._contexts]
        self._contexts.update({client: place / f"{client}.state" for client in left})
        return {"contexts": left, "counted": {str(client): number for client, number in executor.counted.items()}}

    def _models(self, place: Path) -> dict[str, Any]:
        """The best model where it is another than the last time, and the one that may still be judged."""
        run = self.simulation
        kept: dict[str, Any] = {"best": None, "evaluated": None}
        if run.best is not None and run.best is not self._best:
            self._best = run.best
            run.best.state.save(place / "best.safetensors")
            best = run.best
            kept["best"] = [best.value, best.said, best.rounds, best.epsilon]
            self._superseded += [self._best_file] if self._best_file else []
            self._best_file = place / "best.safetensors"
        if run.settings.best_model and run._models.evaluated is not None:
            number, model = run._models.evaluated
            model.save(place / "evaluated.safetensors")
            kept["evaluated"] = number
        return kept

    def _recall_models(self, kept: Mapping[str, Any], place: Path) -> None:
        run = self.simulation
        if kept["best"] is not None and (place / "best.safetensors").exists():
            value, said, rounds, epsilon = kept["best"]
            state = ModelState.open(place / "best.safetensors")
            run._state.selection.best = value
            run._models.best = BestModel(state=state, value=value, said=said, rounds=rounds, epsilon=epsilon)
            self._best, self._best_file = run._models.best, place / "best.safetensors"
        if kept["evaluated"] is not None:
            run._models.evaluated = kept["evaluated"], ModelState.open(place / "evaluated.safetensors")

    def _fates(self) -> RandomDrops:
        if not isinstance(self.simulation._fates, RandomDrops):
            raise ConfigurationError("a simulation with a custom dropout model cannot be checkpointed")
        return self.simulation._fates

    def _executor(self) -> RecordingExecutor:
        executor = self.simulation._executor
        assert isinstance(executor, RecordingExecutor)  # noqa: S101 - put there with the state folder
        return executor
