"""Views of a run: figures of its rounds, marks of its clients, and its events as they happen.

All of it is read from the run's record, once for all streams, and only when one is open: each event is read one
time, however many streams are open. The bell that rings with every batch of events says whether there is anything new.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fedcore.wire.events import Recorded, RunEnded, StageProgress
from fedcore.wire.watch import Role
from server_app.polling import Bell
from server_app.storage.store import Store
from server_app.views.overview_feed import browser_json
from server_app.views.participation_timeline import ParticipationTimeline
from server_app.views.redaction import event_for_viewers
from server_app.views.round_charts import RoundCharts

MOST_VIEWS: Final = 8
"""Runs that are kept in memory: of others the record is read again."""
TAIL_BYTES: Final = 1 << 20
"""The newest events of a run that are kept for streams; who is farther behind reads the database."""
EVENTS_A_PAGE: Final = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it is sent.

    seq
        Number of the event.
    data
        For operators.
    for_viewers
        For viewers; empty if viewers do not get the event.
    replaces
        Frames of the same key before it need not be sent; None if it replaces none.
    """

    seq: int
    data: bytes = field(repr=False)
    for_viewers: bytes = field(repr=False)
    replaces: tuple[int, str] | None

    @classmethod
    def of(cls, item: Recorded) -> Frame:
        """An event as `text/event-stream` (WHATWG HTML, 9.2)."""
        event = item.event
        key = (event.exchange, event.stage) if isinstance(event, StageProgress) else None
        visible = event_for_viewers(item)
        data = _encode(item)
        return cls(item.seq, data, data if visible is item else b"" if visible is None else _encode(visible), key)


def _encode(item: Recorded) -> bytes:
    return f"id: {item.seq}\nevent: {item.event.kind}\ndata: {browser_json(item.model_dump_json())}\n\n".encode()


def newest(frames: Sequence[Frame], role: Role) -> bytes:
    """Frames in one piece, as they go to `role`: of the progress of a stage the last alone."""
    last = {frame.replaces: frame.seq for frame in frames if frame.replaces is not None}
    return b"".join(
        frame.for_viewers if role is Role.VIEWER else frame.data
        for frame in frames
        if frame.replaces is None or last[frame.replaces] == frame.seq
    )


class RunView:
    """One run as it is seen."""

    def __init__(self, store: Store, run: str, bell: Bell) -> None:
        self.seq = 0
        """Number of the last event that was read."""
        self.rounds = RoundCharts()
        self.marks = ParticipationTimeline()
        self.ended = False
        """Whether that event is the run's end."""
        self._store = store
        self._run = run
        self._bell = bell
        self._rings = -1
        self._reading = asyncio.Lock()
        self._tail: deque[Frame] = deque()
        self._tail_bytes = 0

    async def catch_up(self) -> None:
        """Read what is new."""
        while self._rings != self._bell.rings:
            async with self._reading:
                rings = self._bell.rings
                while self._rings != rings:
                    page = await self._store.events(self._run, self.seq, EVENTS_A_PAGE)
                    self._take(page)
                    if len(page) < EVENTS_A_PAGE:
                        self._rings = rings

    def _take(self, page: Sequence[Recorded]) -> None:
        is_old = len(page) == EVENTS_A_PAGE  # a record that is read from its beginning: nobody follows that
        for item in page:
            self.rounds.take(item)
            self.marks.take(item)
            self.seq, self.ended = item.seq, isinstance(item.event, RunEnded)
            if is_old:
                self._tail.clear()
                self._tail_bytes = 0
            else:
                self._keep(Frame.of(item))

    def _keep(self, frame: Frame) -> None:
        self._tail.append(frame)
        self._tail_bytes += len(frame.data)
        while self._tail_bytes > TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft().data)

    async def after(self, seq: int) -> list[Frame]:
        """Some of the events after number `seq`, in order."""
        if seq >= self.seq:
            return []
        if self._tail and self._tail[0].seq <= seq + 1:
            return [frame for frame in self._tail if frame.seq > seq]
        return [Frame.of(item) for item in await self._store.events(self._run, seq, EVENTS_A_PAGE)]


class RunViews:
    """The views of the runs that were looked at last."""

    def __init__(self, store: Store, bell: Bell) -> None:
        self._store = store
        self._bell = bell
        self._views: OrderedDict[str, RunView] = OrderedDict()

    async def of(self, run: str) -> RunView:
        """A run's view, with all that is in its record."""
        view = self._views.setdefault(run, RunView(self._store, run, self._bell))
        self._views.move_to_end(run)
        while len(self._views) > MOST_VIEWS:
            self._views.popitem(last=False)
        await view.catch_up()
        return view

    def forget(self) -> None:
        """Another server may have led in the meantime: what was read counts no more."""
        self._views.clear()
