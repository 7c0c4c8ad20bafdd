"""The line meter: how fast the line to the server is, by what a client transfers anyway.

What it measures depends on bytes, whose number the protocol fixes, and on the line; nothing of an update is in it. An
upload is measured from its first part to its last answer, while parts are on the line: what a client computes in
between does not count.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from fedcore.monitoring.line_speed import LineSpeed, tells_speed

_TRIPS: Final = 8


@dataclass(slots=True)
class LineMeter:
    """Measures the transfers of one client. Several threads may call it.

    clock: monotonic seconds.
    """

    clock: Callable[[], float]
    speed: LineSpeed = field(default_factory=LineSpeed, init=False)
    """As the newest transfers that tell it show it."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _uploads: int = field(default=0, init=False)
    """Bodies on the line."""
    _since: float = field(default=0.0, init=False)
    _sent: int = field(default=0, init=False)
    _is_broken: bool = field(default=False, init=False)
    _trips: deque[float] = field(default_factory=lambda: deque(maxlen=_TRIPS), init=False)

    @contextlib.contextmanager
    def uploading(self, size: int) -> Iterator[None]:
        """A body of so many bytes is on the line; transfers at the same time count as one."""
        with self._lock:
            if not self._uploads:
                self._since, self._sent, self._is_broken = self.clock(), 0, False
            self._uploads += 1
        arrived = False
        try:
            yield
            arrived = True
        finally:
            with self._lock:
                self._uploads -= 1
                self._sent += size
                self._is_broken |= not arrived
                seconds = self.clock() - self._since
                if not self._uploads and not self._is_broken and self._tells(self._sent, seconds):
                    self.speed = replace(self.speed, up=self._sent / seconds)

    def note_download(self, size: int, seconds: float) -> None:
        """A body of so many bytes came in that time."""
        with self._lock:
            if self._tells(size, seconds):
                self.speed = replace(self.speed, down=size / seconds)

    def note_trip(self, seconds: float) -> None:
        """A request was answered that a server answers at once; the least of the last few is the round trip."""
        with self._lock:
            self._trips.append(seconds)
            self.speed = replace(self.speed, round_trip=min(self._trips))

    def _tells(self, size: int, seconds: float) -> bool:
        return tells_speed(size, seconds, self.speed.round_trip)
