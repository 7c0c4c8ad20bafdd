"""Retry deadlines: how long a failed request is sent again, by the reason of the failure.

A server that is away comes back: it is being restarted, or another one takes over. An exchange waits for that as long
as it may last. A request that fails while the server answers others is another matter: something between the two
resets it, or the server cannot carry it out, and going on for an hour would only keep the others waiting. A download
that has come further since is no such matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from client_app.http.silence import ANSWER_SECONDS, PROBE_SECONDS

_LEAST_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How long a request that fails is sent again, in seconds."""

    stuck_seconds: float = 60.0
    """While the server answers others, or this one with an error of its own; 0 for one attempt, and else for at least
    four: one attempt at a body can take longer than a minute on a slow line."""
    away_seconds: float = math.inf
    """While no server answers at all, or none that leads. Infinite if the caller bounds it, as an exchange does."""
    first_pause: float = 0.2
    """Bound of the random pause before the second attempt; it doubles with each further one."""
    longest_pause: float = 5.0
    answer_seconds: float = ANSWER_SECONDS
    """How long the server may say nothing, beyond what it may hold the request."""


ONCE: Final = Retry(stuck_seconds=0.0, away_seconds=0.0)
PROBE: Final = Retry(stuck_seconds=0.0, away_seconds=0.0, answer_seconds=PROBE_SECONDS)
"""For a sign of life, which is soon followed by the next one."""
BRIEF: Final = Retry(away_seconds=60.0)
"""Outside of an exchange, if something else is to be tried soon."""


@dataclass(slots=True)
class RetryDeadline:
    """When one request is given up."""

    rule: Retry
    clock: Callable[[], float]
    """Monotonic seconds."""
    answers: int
    """How many requests, of any kind, had been answered when this one began."""
    received: int = 0
    """Bytes of a download that were here after the last attempt."""
    _began: float = field(init=False)
    _stuck_since: float | None = field(default=None, init=False)
    _stuck: int = field(default=0, init=False)
    """Attempts that failed since then."""

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def stuck(self) -> bool:
        """Whether the last attempt failed although the server answered others meanwhile."""
        return self._stuck_since is not None

    def expired(self, away: bool, answers: int, received: int = 0) -> bool:
        """Whether an attempt that failed was the last one.

        Args:
            away: whether it failed as it does if no server is there.
            answers: how many requests have been answered by now.
            received: bytes of a download that are here by now.
        """
        now, alone = self.clock(), answers == self.answers
        self.answers = answers
        if received > self.received:
            self.received, self._began, self._stuck_since = received, now, None
            return False
        if away and alone:
            self._stuck_since = None
            return now - self._began >= self.rule.away_seconds
        if self._stuck_since is None:
            self._stuck_since, self._stuck = now, 0
        self._stuck += 1
        enough = not self.rule.stuck_seconds or self._stuck >= _LEAST_ATTEMPTS
        return enough and now - self._stuck_since >= self.rule.stuck_seconds
