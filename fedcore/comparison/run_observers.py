"""What a comparison observes in the events of a run: who fetched which model, its versions, and a client to kill."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedcore.comparison.results import LostWorker
from fedcore.comparison.run import Kill, worker_name
from fedcore.monitoring.run_record import RunRecord
from fedcore.system.workers.child_processes import ChildProcesses
from fedcore.wire.events import ClientDropped, ExchangeDone, ExchangeStarted, RunEnded, RunEvent, StageProgress


@dataclass(slots=True, kw_only=True)
class ClientKiller:
    """Kills a client when it is time, and notes how long the others took to go on without it.

    buffered: whether a cohort that it is not in says nothing, since each is of those that are ready.
    """

    group: ChildProcesses
    kill: Kill | None
    sites: int
    buffered: bool = False
    clock: Callable[[], float] = time.monotonic
    _killed_at: float | None = None
    _noticed: str = ""
    _seconds: float = 0.0

    def see(self, event: RunEvent) -> None:
        """Take an event of the run."""
        if self.kill is None or self._noticed:
            return
        name = worker_name(self.kill.site)
        if self._killed_at is None:
            if _is_due(event, self.kill.round):
                self.group.kill(name)
                self._killed_at = self.clock()
        elif isinstance(event, ClientDropped) and event.client == name:
            self._note(f"dropped in stage {event.stage} ({event.reason})")
        elif isinstance(event, ExchangeStarted) and name not in event.cohort and not self.buffered:
            self._note("not asked again")
        elif isinstance(event, RunEnded):
            self._note("not missed before the end")

    def losses(self, record: RunRecord) -> tuple[LostWorker, ...]:
        """Nobody, or the one that was killed."""
        if self.kill is None or self._killed_at is None:
            return ()
        remainder = f"the run went on with {self.sites - 1} of {self.sites} clients"
        outcome = remainder if record.status == "finished" else f"the run failed: {record.reason}"
        return (
            LostWorker(
                worker=worker_name(self.kill.site),
                round=self.kill.round,
                consequence=f"{self._noticed or 'not missed before the end'}; {outcome}",
                seconds=self._seconds,
            ),
        )

    def _note(self, outcome: str) -> None:
        self._noticed, self._seconds = outcome, self.clock() - (self._killed_at or 0.0)


@dataclass(slots=True)
class ModelVersions:
    """Catches the models of a buffered run, which the server keeps for as long as clients train from them.

    data: the server's folder.
    out: where they are kept.
    paths: by number.
    """

    data: Path
    out: Path
    paths: dict[int, Path] = field(default_factory=dict)

    def see(self, event: RunEvent) -> None:
        """Take an event of the run; a new version is there before its first."""
        if not isinstance(event, StageProgress | ExchangeStarted):
            return
        with contextlib.suppress(FileNotFoundError):  # the run ends just now, and its folder goes
            for path in self.data.glob("work/*/versions/*.safetensors"):
                self._keep(path)

    def _keep(self, path: Path) -> None:
        number = int(path.stem)
        if number not in self.paths:
            copy = self.out / f"version-{number}.safetensors"
            with contextlib.suppress(FileNotFoundError):  # nobody needs it any more, just now
                shutil.copyfile(path, copy)
                self.paths[number] = copy


@dataclass(slots=True, kw_only=True)
class SentModels:
    """Which model the clients were given in each exchange, and who had to fetch it.

    A client keeps the last model, and does not fetch again what it evaluated in the exchange before.
    """

    on_clients: dict[str, str]
    models: list[str] = field(default_factory=list)
    fetched: list[frozenset[str]] = field(default_factory=list)
    _model: str = ""
    _fetching: frozenset[str] = frozenset()

    def see(self, event: RunEvent) -> None:
        """Take an event of the run."""
        if isinstance(event, ExchangeStarted):
            self._model = event.model or ""
            fetched = event.content or self._model
            self._fetching = frozenset(name for name in event.cohort if self.on_clients.get(name) != fetched)
            if fetched:
                self.on_clients.update(dict.fromkeys(event.cohort, fetched))
        elif isinstance(event, ExchangeDone):
            self.models.append(self._model)
            self.fetched.append(self._fetching)


def _is_due(event: RunEvent, kill_round: int) -> bool:
    """After the evaluation of the round, or with the next round if there is none."""
    if isinstance(event, ExchangeDone):
        return event.server_round == kill_round and not event.trains
    return isinstance(event, ExchangeStarted) and event.server_round > kill_round
