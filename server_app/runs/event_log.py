"""A run's record: events are numbered at once and written in the background, in batches.

While the database takes nothing they wait in memory, up to a number; beyond that, lines that the app prints and the
progress of stages are left out, which nobody needs to know how a run went.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from fedcore.monitoring.event_lines import event_line
from fedcore.system.concurrency import end
from fedcore.wire.events import (
    AppPrinted,
    ClientBlamed,
    ClientDropped,
    EventSink,
    ExchangeDone,
    ExchangeFailed,
    ExchangeRepeated,
    ExchangeStarted,
    FiguresFound,
    GroupEnded,
    GroupStarted,
    Recorded,
    RunEvent,
    RunStarted,
    StageProgress,
    StatisticsFound,
    Warned,
    ignore,
    stamp,
)
from server_app.polling import Bell
from server_app.runs.persistence import persist
from server_app.storage.store import Store

MOST_WAITING: Final = 100_000

log = logging.getLogger("fedcore.server")


class EventLog:
    """Takes the events of one run from anywhere on the event loop, without waiting for the disk.

    clock
        Monotonic seconds; `seconds` of an event count from the making of the record.
    wall
        Seconds since 1970.
    bell
        Rung after each batch is durable, for those who follow the run.
    observe
        Gets each event at once.
    past
        What the record of the run holds already: numbers and seconds continue from there, and events that happen once
        are not added again.
    before
        Seconds that the run has lasted up to now.
    """

    def __init__(
        self,
        *,
        store: Store,
        run: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        bell: Bell,
        observe: EventSink = ignore,
        past: Sequence[Recorded] = (),
        before: float = 0.0,
    ) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._wall = wall
        self._bell = bell
        self._observe = observe
        self._start = clock() - max(before, past[-1].seconds if past else 0.0)
        self._last = past[-1].seq if past else 0
        self._trouble = ""
        self._once = {key for item in past if (key := _once(item.event))}
        self._warnings = {item.event.line for item in past if isinstance(item.event, Warned)}
        self._printed = sum(isinstance(item.event, AppPrinted) for item in past)
        self._known_lines = 0
        self._queue: asyncio.Queue[Recorded] = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())

    @property
    def has_events(self) -> bool:
        """Whether the run has been led before."""
        return self._last > 0

    @property
    def last_exchange(self) -> int:
        """The largest number of an exchange in the record; 0 without one."""
        return max((exchange for kind, exchange, *_ in self._once if kind == ExchangeStarted.__name__), default=0)

    @property
    def seconds(self) -> float:
        """How long the run has lasted."""
        return self._clock() - self._start

    @property
    def trouble(self) -> str:
        """Why events are not being written; empty if they are."""
        return self._trouble

    def add(self, event: RunEvent) -> None:
        """Append an event, unless the record has it already."""
        key = _once(event)
        if key is not None and key in self._once:
            return
        if self._queue.qsize() >= MOST_WAITING and isinstance(event, AppPrinted | StageProgress):
            return
        if key is not None:
            self._once.add(key)
        self._printed += isinstance(event, AppPrinted)
        self._last += 1
        self._queue.put_nowait(stamp(self._last, self.seconds, datetime.fromtimestamp(self._wall(), UTC), event))
        self._observe(event)
        data = event.model_dump(exclude={"kind"})
        log.info("%s", event_line(event), extra={"run": self._run, "event": event.kind, "data": data})

    def has(self, event: RunEvent) -> bool:
        """Whether the record has an event that happens once."""
        return _once(event) in self._once

    def warn_once(self, line: str) -> None:
        """Append a warning, unless the record has it: each start of a ServerApp gives the same again."""
        if line not in self._warnings:
            self._warnings.add(line)
            self.add(Warned(line=line))

    def expect_lines_again(self) -> None:
        """The app starts again: as many lines as it has printed so far are known."""
        self._known_lines = self._printed

    def add_line(self, line: str) -> None:
        """A line that the app printed, unless it is one that it printed before it was started again."""
        if self._known_lines:
            self._known_lines -= 1
        else:
            self.add(AppPrinted(line=line))

    async def close(self) -> None:
        """Write what is left, however long that takes; nothing more is written afterwards, also when cancelled."""
        try:
            await self._queue.join()
        finally:
            await end(self._writer)

    async def _write(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            what = f"events of run {self._run} are not written"
            await persist(partial(self._store.add_events, self._run, batch), what=what, report=self._note)
            for _ in batch:
                self._queue.task_done()
            self._bell.ring()

    def _note(self, trouble: str) -> None:
        self._trouble = trouble


def _once(event: RunEvent) -> tuple[Any, ...] | None:
    """What distinguishes an event that happens once from others of its kind; None if it may happen again."""
    kind = type(event).__name__
    match event:
        case RunStarted() | StatisticsFound():
            return (kind, 0)
        case FiguresFound():
            return (kind, event.source, event.server_round)
        case ExchangeStarted() | ExchangeDone():
            return (kind, event.exchange)
        case ExchangeFailed() | ExchangeRepeated():
            return (ExchangeFailed.__name__, event.exchange)
        case GroupStarted() | GroupEnded():
            return (kind, event.exchange)
        case ClientDropped() | ClientBlamed():
            return (kind, event.exchange, event.client)
        case StageProgress():
            return (kind, event.exchange, event.stage, event.done, event.expected)
        case _:
            return None
