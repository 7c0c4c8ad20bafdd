"""The estimated time until a run ends, from the rounds that it has done."""

from __future__ import annotations

import statistics
from typing import Final

_JUDGED_BY: Final = 5
"""The newest rounds that count: the first ones of a run are slower, and clients come and go."""
_FEWEST: Final = 2


class Eta:
    """Hears when rounds begin; times are seconds since the run began, as its events have them.

    A round lasts from its first exchange to that of the next one, so that what lies between them counts as well.
    """

    def __init__(self) -> None:
        self.rounds: int | None = None
        """How many the app plans; None if it does not say."""
        self._current = 0
        self._began = 0.0
        self._lasted: list[float] = []

    def begins(self, server_round: int, seconds: float) -> None:
        """An exchange of a round begins; round 0, before the first one, does not count."""
        if server_round <= self._current:
            return
        if self._current and server_round == self._current + 1 and seconds > self._began:
            self._lasted.append(seconds - self._began)
        self._current, self._began = server_round, seconds

    def left(self, now: float) -> float | None:
        """Seconds to the end of the last round; None before two rounds are done, or without a plan."""
        if self.rounds is None or len(self._lasted) < _FEWEST or self._current > self.rounds:
            return None
        typical = statistics.median(self._lasted[-_JUDGED_BY:])
        return (self.rounds - self._current) * typical + max(typical - max(now - self._began, 0.0), 0.0)


def in_words(seconds: float) -> str:
    """A time that is not known to the second."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 55:
        return f"about {round(seconds / 10) * 10} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {max(minutes, 1)} min"
    if minutes < 24 * 60:
        hours, rest = divmod(round(minutes / 10) * 10, 60)
        return f"about {hours} h {rest} min" if rest else f"about {hours} h"
    return f"about {minutes / 60 / 24:.1f} days"
