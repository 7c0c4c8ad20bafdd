"""A run's record: events are numbered at once and written in the background, in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fedcore.events import AppPrinted, Recorded, RunEvent, stamp
from fedcore.system.concurrency import end
from server_app.http.polling import Bell
from server_app.storage.store import Store

log = logging.getLogger("fedcore.server")


class EventLog:
    """Takes the events of one run from anywhere on the event loop, without waiting for the disk.

    clock: monotonic seconds; `seconds` of an event count from the making of the record. wall: seconds since 1970.
    bell: rung after each batch is durable, for those who follow the run.
    """

    def __init__(
        self, *, store: Store, run: str, clock: Callable[[], float], wall: Callable[[], float], bell: Bell
    ) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._wall = wall
        self._bell = bell
        self._start = clock()
        self._last = 0
        self._queue: asyncio.Queue[Recorded] = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())

    @property
    def seconds(self) -> float:
        """How long the run has lasted."""
        return self._clock() - self._start

    def add(self, event: RunEvent) -> None:
        """Append an event."""
        self._last += 1
        self._queue.put_nowait(stamp(self._last, self.seconds, datetime.fromtimestamp(self._wall(), UTC), event))
        data = event.model_dump(exclude={"kind"})
        log.info("%s", _line(event, data), extra={"run": self._run, "event": event.kind, "data": data})

    async def close(self) -> None:
        """Write what is left; raises what the writing raised."""
        if not self._writer.done():
            flushed = asyncio.create_task(self._queue.join())
            await asyncio.wait({flushed, self._writer}, return_when=asyncio.FIRST_COMPLETED)
            await end(flushed)
        if self._writer.done():
            self._writer.result()
        await end(self._writer)

    async def _write(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._store.add_events(self._run, batch)
            for _ in batch:
                self._queue.task_done()
            self._bell.ring()


def _line(event: RunEvent, data: Mapping[str, Any]) -> str:
    """An event for a person's eyes."""
    if isinstance(event, AppPrinted):
        return f"app: {event.line}"
    shown = ((key, value) for key, value in data.items() if value not in (None, "", [], {}))
    return f"{event.kind}: " + ", ".join(f"{key} {_short(value)}" for key, value in shown)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        names = [str(item) for item in value[:8]]
        return "[" + " ".join(names) + (" ...]" if len(value) > 8 else "]")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(item)}" for key, item in list(value.items())[:8]) + "}"
    return str(value)
