"""Slow lines before a round: who has more time, who is not asked, and who would miss.

Each is said once of a client, in the run's events and in the server's log, and again if it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from fedcore.monitoring.line_speed import LESS_OR_LONGER, RoundTime
from fedcore.run.settings import JobSettings
from server_app.runs.event_log import EventLog
from server_app.services import Services

log = logging.getLogger("fedcore.server")


class LineVerdict(Enum):
    """What follows for a client from its line."""

    IN_TIME = "in time"
    MORE_TIME = "more time"
    TOO_SLOW = "too slow"
    """Too slow for `transfer-seconds`, or for what slow-lines = "leave-out" allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes that a client downloads and uploads in an exchange; 0 for what is next to nothing."""

    down: int = 0
    up: int = 0


@dataclass(slots=True)
class SlowLines:
    """The slow lines of the clients of one run."""

    services: Services
    settings: JobSettings
    event_log: EventLog
    _verdicts: dict[int, tuple[LineVerdict, bool]] = field(default_factory=dict)
    """What was said last of each client, and whether it was asked."""

    def slow(self, clients: Collection[int]) -> frozenset[int]:
        """Those of the clients that get a change or difference to a model sooner than the model."""
        return frozenset(one for one in clients if self.services.lines.speed(one).is_slow)

    def too_slow(self, clients: Iterable[int], sizes: Sizes) -> frozenset[int]:
        """Those of the clients that are asked only if too few others are there."""
        return frozenset(one for one in clients if self._verdict(self._time(one, sizes)) is LineVerdict.TOO_SLOW)

    def announce(self, pool: Collection[int], cohort: Collection[int], sizes: Sizes) -> None:
        """Say of the clients of a pool what follows from their lines, now that it is decided who trains."""
        if not sizes.up:
            return
        self.services.lines.left_out = {}
        for client in sorted(pool):
            time, is_asked = self._time(client, sizes), client in cohort
            verdict = self._verdict(time)
            if verdict is LineVerdict.IN_TIME:
                self._verdicts.pop(client, None)
                continue
            line = self._text(client, verdict, time, is_asked=is_asked)
            if verdict is LineVerdict.TOO_SLOW and not is_asked:
                self.services.lines.left_out[client] = line
            if self._verdicts.get(client) != (verdict, is_asked):
                self._verdicts[client] = (verdict, is_asked)
                log.warning("%s: %s", self.services.names[client], line)
                self.event_log.warn_once(f"{self.services.names[client]}: {line}")

    def _time(self, client: int, sizes: Sizes) -> RoundTime:
        return RoundTime.of(self.services.lines.speed(client), down=sizes.down, up=sizes.up, trips=0)

    def _verdict(self, time: RoundTime) -> LineVerdict:
        slowest = max(time.download, time.upload)
        if slowest <= self.settings.step_seconds:
            return LineVerdict.IN_TIME
        waits = self.settings.slow_lines == "wait" and slowest <= self.settings.transfer_seconds
        return LineVerdict.MORE_TIME if waits else LineVerdict.TOO_SLOW

    def _text(self, client: int, verdict: LineVerdict, time: RoundTime, *, is_asked: bool) -> str:
        settings = self.settings
        need = (
            f"its line ({self.services.lines.speed(client)}) takes {time.download:.0f} s for the model and "
            f"{time.upload:.0f} s for an update"
        )
        if verdict is LineVerdict.MORE_TIME:
            return f"{need}; it has up to twice that time, and others wait for it"
        what = "it is asked, since too few others are there, and may miss the round" if is_asked else "it is not asked"
        if settings.slow_lines == "leave-out":
            limit = f'step-seconds = {settings.step_seconds:g} with slow-lines = "leave-out"'
            return f'{need}, and {limit} allows less; {what}; slow-lines = "wait" gives it time'
        return f"{need}, and transfer-seconds = {settings.transfer_seconds:g} allows less; {what}; {LESS_OR_LONGER}"
