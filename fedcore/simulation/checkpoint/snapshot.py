"""Checkpoint of a simulated run, written after each exchange.

The run's state is folded again from the ends of its exchanges. What grows with the run (the transcript's chain, the
owners' histories, the clients' Contexts) is written as far as it has changed since the last time.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcore.federation.admission.simulated import SimulatedOwners
from fedcore.run.engine.outcome import ExchangeOutcome
from fedcore.run.engine.state import RunState
from fedcore.simulation.checkpoint.generators import reading_state
from fedcore.simulation.devices.virtual_scheduler import VirtualScheduler
from fedcore.simulation.dropouts import RandomDropout
from fedcore.simulation.models import BEST_FILE, BestModelKeeper
from fedcore.simulation.plain import PlainSimulation
from fedcore.simulation.workers.executor import RecordingExecutor
from fedcore.wire.tasks import StoredTask, Task


@dataclass(slots=True, kw_only=True)
class RunCheckpoint:
    """Writes and restores the state of a simulation, exchange by exchange.

    state
        What the secure exchanges so far have taught and cost.
    plain
        The plain exchanges, which are counted.
    virtual
        The virtual clock; None without one.
    """

    state: RunState
    executor: RecordingExecutor
    owners: SimulatedOwners
    models: BestModelKeeper
    plain: PlainSimulation
    dropouts: RandomDropout
    virtual: VirtualScheduler | None
    _ends: list[tuple[Task, ExchangeOutcome]] = field(default_factory=list, init=False)
    """The exchanges that have ended since the last time."""
    _contexts: dict[int, Path] = field(default_factory=dict, init=False)
    _best: Path | None = field(default=None, init=False)
    _superseded: list[Path] = field(default_factory=list, init=False)

    def note_end(self, task: Task, end: ExchangeOutcome) -> None:
        """An exchange has ended."""
        self._ends.append((task, end))

    def save(self, folder: Path) -> dict[str, Any]:
        """All that has changed since the last time, as JSON; files of models and Contexts go into the folder."""
        ends, self._ends = self._ends, []
        models = self.models.save(folder)
        if models["best"] is not None:
            self._superseded += [self._best] if self._best else []
            self._best = folder / BEST_FILE
        return {
            "ends": [[task.model_dump(mode="json", exclude={"places"}), end.to_json()] for task, end in ends],
            "plain": self.plain.count,
            "dropouts": self.dropouts.save(),
            "virtual": None if self.virtual is None else self.virtual.save(),
            "owners": self.owners.save(),
            "models": models,
            "contexts": self._save_contexts(folder),
            "counted": {str(client): number for client, number in self.executor.aggregated_rounds.items()},
        }

    def restore(self, saved: Mapping[str, Any], folder: Path) -> None:
        """Take in what was saved once; to be called in the order in which it was saved.

        Raises ConfigurationError for what `save` did not write.
        """
        with reading_state():
            for task, end in saved["ends"]:
                self.state.take(StoredTask.model_validate(task), ExchangeOutcome.from_json(end))
            self.state.take_groups()
            self.plain.count = saved["plain"]
            self.dropouts.restore(saved["dropouts"])
            if self.virtual is not None:
                self.virtual.restore(saved["virtual"])
            self.owners.restore(saved["owners"])
            self.models.restore(saved["models"], folder)
            if saved["models"]["best"] is not None:
                self._best = folder / BEST_FILE
            self.executor.aggregated_rounds.update({int(client): number for client, number in saved["counted"].items()})
            self._contexts.update({client: folder / f"{client}.state" for client in saved["contexts"]})

    def restore_clients(self) -> None:
        """Give the executor the Contexts of its clients, after the last step."""
        for client, number in dict(self.executor.aggregated_rounds).items():
            self.executor.count(number, [client])
        self.executor.restore(self._contexts)

    def remove_superseded(self, folder: Path) -> None:
        """Remove files that newer ones have replaced, once those are durable.

        Args:
            folder: the one written last; it is removed if it is empty.
        """
        for file in self._superseded:
            file.unlink(missing_ok=True)
        self._superseded.clear()
        if not any(folder.iterdir()):
            shutil.rmtree(folder)

    def _save_contexts(self, folder: Path) -> list[int]:
        saved = self.executor.save(folder, sorted(self.executor.worked))
        self.executor.worked.clear()
        self._superseded += [self._contexts[client] for client in saved if client in self._contexts]
        self._contexts.update({client: folder / f"{client}.state" for client in saved})
        return saved
