"""A simulation that can be killed at any time and resumed: the ServerApp is started again, over the journal of its run.

What else a run consists of (`snapshot`) and its events are saved with each reply, and so is the state of the random
generators: the clients' apps draw from them as well, and do not run again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from fedcore.flower.grid.grid import ExchangeBackend
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.flower.serverside import seed_generators
from fedcore.run.engine.attempts import run_now
from fedcore.run.engine.journal import (
    NODES_REQUEST,
    Journal,
    JsonObject,
    exchange_record,
    plain_exchange_record,
)
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.simulation.checkpoint.generators import restore_generators, save_generators
from fedcore.simulation.checkpoint.journal_folder import JournalFolder
from fedcore.simulation.checkpoint.reply_files import load_replies, load_sums, save_replies, save_sums
from fedcore.simulation.checkpoint.snapshot import RunCheckpoint
from fedcore.simulation.checkpoint.state_folder import StateFolder
from fedcore.simulation.downloads import SimulatedDownloads
from fedcore.simulation.models import model_ref
from fedcore.state import sha256_file
from fedcore.system.files import make_private_folder
from fedcore.wire.events import EventSink, FiguresFound, RunEvent, RunResumed

T = TypeVar("T")
_EVENT: Final[TypeAdapter[RunEvent]] = TypeAdapter(RunEvent)


@dataclass(slots=True)
class EventRecorder:
    """Passes the events of a run on, and records those that are not saved yet."""

    to: EventSink
    _events: list[RunEvent] = field(default_factory=list, init=False)

    def __call__(self, event: RunEvent) -> None:
        self._events.append(event)
        self.to(event)

    def take(self) -> list[Any]:
        """The events since the last time, as JSON."""
        events, self._events = self._events, []
        return [event.model_dump(mode="json") for event in events]


@dataclass(slots=True, kw_only=True)
class Resumable:
    """The backend of a ServerApp that journals each reply of the simulation, and gives those again that it has.

    backend
        Replies to what no earlier process has replied to.
    downloads
        How models get to the clients: the next difference is taken to what was sent last, live or before.
    name
        Of the run; the generators of the process are seeded by it.
    """

    backend: ExchangeBackend
    downloads: SimulatedDownloads
    folder: StateFolder
    checkpoint: RunCheckpoint
    events: EventRecorder
    name: str
    _steps: JournalFolder = field(init=False)
    _journal: Journal = field(init=False)

    def begin(self) -> None:
        """Seed what apps draw from, emit the events of before, and put the simulation where it was."""
        self._steps = JournalFolder(path=self.folder.steps, save=self._save, restore=self._restore)
        seed_generators(self.name)
        if steps := self._steps.count:
            why = f"{steps} requests of the ServerApp have their answer in {self.folder.path}"
            self.events(RunResumed(steps=steps, why=why))
        self._journal = run_now(Journal.open(self._steps))
        self.checkpoint.restore_clients()  # also if there are none: an executor that cannot says so before the run
        self.events.take()  # those of before are saved, and those of a start come again at the next one

    def nodes(self) -> list[int]:
        """Ids of the clients that are there."""
        return self._reply(NODES_REQUEST, self.backend.nodes, lambda nodes, _: nodes, lambda nodes, _: nodes)

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """Report that the ServerApp asks for nodes and goes on asking."""
        self.backend.waits(nodes, setting, present)

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """One secure exchange."""
        model = model_ref(request.model)
        self.downloads.of(request)  # also if the journal has the reply: the next difference is taken to this model
        record = exchange_record(request, model.sha256 if model else None)
        return self._reply(record, lambda: self.backend.exchange(request), save_sums, load_sums)

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """One plain exchange."""
        hashes = _hashes(request)
        record = plain_exchange_record(request, [(one, hashes[one.content]) for one in request.messages])
        return self._reply(record, lambda: self.backend.ask(request), save_replies, load_replies)

    def report_figures(self, figures: FiguresFound) -> None:
        """Pass figures on; those before the last journaled reply are among the saved events."""
        if self._journal.number >= self._journal.answered:
            self.backend.report_figures(figures)

    def _reply(
        self,
        request: JsonObject,
        carry_out: Callable[[], T],
        save: Callable[[T, Path], Any],
        load: Callable[[Any, Path], T],
    ) -> T:
        journaled = run_now(self._journal.begin(request))
        folder = self._steps.folder(self._journal.number)
        if journaled is not None:
            restore_generators(journaled["generators"])
            return load(journaled["result"], folder)
        result = carry_out()
        reply = {"result": save(result, folder), "generators": save_generators()}
        run_now(self._journal.answer(reply))
        self.checkpoint.remove_superseded(folder)
        return result

    def _save(self, folder: Path) -> JsonObject:
        return {"events": self.events.take(), "checkpoint": self.checkpoint.save(folder)}

    def _restore(self, saved: JsonObject, folder: Path) -> None:
        for event in saved["events"]:
            self.events(_EVENT.validate_python(event))
        self.checkpoint.restore(saved["checkpoint"], folder)


def _hashes(request: PlainRequest) -> list[str]:
    folder = make_private_folder()
    try:
        hashes = []
        for content in request.contents:
            content.save(folder / "content")
            hashes.append(sha256_file(folder / "content"))
        return hashes
    finally:
        shutil.rmtree(folder)
