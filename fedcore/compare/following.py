"""What is read off a run's events while they come: its record, who fetched which model, and whom it is to lose."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fedcore.compare.processes import ProcessGroup
from fedcore.compare.results import Loss
from fedcore.compare.run import Kill, worker_name
from fedcore.events import ClientDropped, EventSink, ExchangeDone, ExchangeStarted, Recorded, RunEnded, RunEvent
from fedcore.record import RunRecord

IDLE_SECONDS: Final = 0.5


@dataclass(slots=True, kw_only=True)
class Killing:
    """Kills a client when it is time, and notes how long the others took to go on without it."""

    group: ProcessGroup
    kill: Kill | None
    sites: int
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
        elif isinstance(event, ExchangeStarted) and name not in event.cohort:
            self._note("not asked again")
        elif isinstance(event, RunEnded):
            self._note("not missed before the end")

    def losses(self, record: RunRecord) -> tuple[Loss, ...]:
        """Nobody, or the one that was killed."""
        if self.kill is None or self._killed_at is None:
            return ()
        left = f"the run went on with {self.sites - 1} of {self.sites} clients"
        outcome = left if record.status == "finished" else f"the run failed: {record.reason}"
        return (
            Loss(
                worker=worker_name(self.kill.site),
                round=self.kill.round,
                consequence=f"{self._noticed or 'not missed before the end'}; {outcome}",
                seconds=self._seconds,
            ),
        )

    def _note(self, noticed: str) -> None:
        self._noticed, self._seconds = noticed, self.clock() - (self._killed_at or 0.0)


@dataclass(slots=True, kw_only=True)
class Given:
    """Which model the clients were given in each exchange, and who had to fetch it.

    A client keeps the last model, and does not fetch again what it evaluated in the exchange before.
    """

    held: dict[str, str]
    models: list[str] = field(default_factory=list)
    fetched: list[frozenset[str]] = field(default_factory=list)
    _model: str = ""
    _fetching: frozenset[str] = frozenset()

    def see(self, event: RunEvent) -> None:
        """Take an event of the run."""
        if isinstance(event, ExchangeStarted):
            self._model = event.model or ""
            self._fetching = frozenset(name for name in event.cohort if self.held.get(name) != self._model)
            if self._model:
                self.held.update(dict.fromkeys(event.cohort, self._model))
        elif isinstance(event, ExchangeDone):
            self.models.append(self._model)
            self.fetched.append(self._fetching)


def _is_due(event: RunEvent, kill_round: int) -> bool:
    """After the evaluation of the round, or with the next round where there is none."""
    if isinstance(event, ExchangeDone):
        return event.server_round == kill_round and not event.trains
    return isinstance(event, ExchangeStarted) and event.server_round > kill_round


def follow(group: ProcessGroup, child: subprocess.Popen[str], emit: EventSink) -> RunRecord:
    """Read a run's events until it ends; another process of the group that ends with an error ends the run too."""
    record = RunRecord()
    for line in _lines(child, idle=lambda: group.check(but=child)):
        if "event" in json.loads(line):  # not the summary, which comes last
            recorded = Recorded.model_validate_json(line)
            record.add(recorded.event, recorded.seconds)
            emit(recorded.event)
    child.wait()
    if not record.status:
        group.check()
    return record


def _lines(child: subprocess.Popen[str], *, idle: Callable[[], None]) -> Iterator[str]:
    """The lines that a child prints, until it ends; `idle` is called while there are none."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed, because nobody waits for more
            for line in child.stdout or ():
                lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            idle()
            continue
        if not line:
            return
        yield line
