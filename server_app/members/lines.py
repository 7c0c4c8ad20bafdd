"""The lines of the clients: the bytes a second that transfers show, and who rests since it would miss its stage again.

Clients measure their lines and say so when they ask for a task; of one that does not, the server's own measure counts.

A client that misses a stage has cost the others that stage's time. If it was in the middle of a transfer it would miss
the next one too; without such a sign it may, and does not count before the second time in a row. It rests for ten times
as long as it has cost, and for twice the last rest after each further time, so that slow clients cost a tenth of a run
at most; then it is tried again. All of it is in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fedcore.monitoring.line_speed import LineSpeed, tells_speed

_REST_FACTOR: Final = 10.0
_LONGEST_REST: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """until: on the clock that `Lines` is given. seconds: how long it is. needed: seconds that the stage would take."""

    until: float
    seconds: float
    needed: float
    why: str


@dataclass(slots=True)
class Lines:
    """Of all clients. `now` is seconds of one monotonic clock.

    left_out: clients that the newest round did not ask since their lines are too slow for it, and why.
    """

    left_out: dict[int, str] = field(default_factory=dict)
    _reports: dict[int, LineSpeed] = field(default_factory=dict)
    _speeds: dict[int, LineSpeed] = field(default_factory=dict)
    _rests: dict[int, _Rest] = field(default_factory=dict)

    def speed(self, client: int) -> LineSpeed:
        """How fast a client's line was last."""
        return self._reports.get(client, LineSpeed()).or_else(self._measured(client))

    def note_report(self, client: int, speed: LineSpeed) -> None:
        """The client says how fast its line is."""
        self._reports[client] = speed

    def _measured(self, client: int) -> LineSpeed:
        return self._speeds.get(client, LineSpeed())

    def note_up(self, client: int, size: int, seconds: float) -> None:
        """The client has sent so many bytes in that time."""
        if tells_speed(size, seconds, self.speed(client).round_trip):
            self._speeds[client] = replace(self._measured(client), up=size / seconds)

    def note_down(self, client: int, size: int, seconds: float) -> None:
        """The client has received so many bytes in that time."""
        if tells_speed(size, seconds, self.speed(client).round_trip):
            self._speeds[client] = replace(self._measured(client), down=size / seconds)

    def note_on_time(self, client: int) -> None:
        """Its update has come: the next rest is a first one."""
        self._rests.pop(client, None)

    def note_late(self, client: int, line: str, *, needed: float, lost: float, now: float) -> str:
        """A client missed its stage; what to tell its owner and the operator of what follows, "" for nothing.

        Args:
            client: its number.
            line: why its line is the cause, in words; "" if nothing shows that.
            needed: seconds that the stage would have taken with it, at least.
            lost: seconds that it took without it.
            now: the time.
        """
        before = self._rests.get(client)
        if before is None and not line:
            self._rests[client] = _Rest(until=now, seconds=0.0, needed=needed, why="")
            return ""
        seconds = _REST_FACTOR * lost if before is None or not before.seconds else 2 * before.seconds
        seconds = min(seconds, _LONGEST_REST)
        why = line or f"it missed a stage of {lost:.0f} s twice in a row"
        self._rests[client] = _Rest(until=now + seconds, seconds=seconds, needed=needed, why=why)
        return f"{why}; it is not asked for {seconds:.0f} s if there are enough others"

    def why_not_asked(self, now: float) -> Mapping[int, str]:
        """Clients that are not asked for their lines, and why."""
        return {**self.left_out, **self.resting(0.0, now)}

    def resting(self, within: float, now: float) -> Mapping[int, str]:
        """Who rests now since it would need more than `within` seconds for a stage, and why."""
        return {
            client: f"{rest.why}; tried again in {rest.until - now:.0f} s"
            for client, rest in self._rests.items()
            if now < rest.until and rest.needed > within
        }
