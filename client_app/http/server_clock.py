"""Whether this machine's clock agrees with the server's, by the date of its answers, which TLS protects."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from fedcore.wire.signing import CLOCK_SKEW_S, clock_difference

_MOST_SECONDS: Final = CLOCK_SKEW_S + 1.0
"""A date has whole seconds."""
_QUICK_SECONDS: Final = 1.0
"""An answer that took longer says nothing: the server waits with some for half a minute."""
_AGAIN_SECONDS: Final = 5.0
"""The dates have to differ for so long: a server that was frozen dates its first answers as it did before."""


class ServerClock:
    """Compares the clocks, and says once that they differ.

    Args:
        notice: gets the line.
        wall: seconds since 1970 by this machine.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        notice: Callable[[str], None],
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notice = notice
        self._wall = wall
        self._clock = clock
        self._off_since: float | None = None
        self._is_named = False

    def note(self, headers: Mapping[str, str], seconds: float) -> None:
        """Read the date of an answer that came just now (RFC 9110, 6.6.1).

        Args:
            headers: of the answer.
            seconds: since the request was sent; the server may have dated its answer at any moment of them.
        """
        if seconds > _QUICK_SECONDS:
            return
        try:
            offset = self._wall() - parsedate_to_datetime(headers.get("date", "")).timestamp()
        except (ValueError, TypeError):
            return
        if abs(offset) <= _MOST_SECONDS:
            self._off_since, self._is_named = None, False
            return
        now = self._clock()
        if self._off_since is None:
            self._off_since = now
        if not self._is_named and now - self._off_since >= _AGAIN_SECONDS:
            self._is_named = True
            text = clock_difference(offset)
            self._notice(f"this machine's clock is {text} the server's; set it, unless the server's is wrong")
