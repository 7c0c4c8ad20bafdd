"""How long a request is sent again, which depends on why it failed.

A server that is away comes back: it is being restarted, or another one takes over. Whoever takes part in an exchange
waits for that as long as the exchange may last. A request that fails while the server answers others is another matter:
something between the two resets it, or the server cannot carry it out, and going on for an hour would only keep the
others waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How long a request is sent again that fails, in seconds.

    patience: while the server answers others, or this one with an error of its own; 0 for one attempt.
    away: while no server answers at all, or none that leads. Infinite where the caller sets the limit, as an exchange
    does. first_pause, longest_pause: bounds of the random pauses between two attempts.
    """

    patience: float = 60.0
    away: float = math.inf
    first_pause: float = 0.2
    longest_pause: float = 5.0


ONCE: Final = Retry(patience=0.0, away=0.0)
BRIEF: Final = Retry(away=60.0)
"""Outside of an exchange, where something else is to be tried soon."""


@dataclass(slots=True)
class Patience:
    """The patience with one request; `clock` gives monotonic seconds.

    answers: how many requests, of any kind, had been answered when this one began.
    """

    rule: Retry
    clock: Callable[[], float]
    answers: int
    _began: float = field(init=False)
    _stuck_since: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def stuck(self) -> bool:
        """Whether the last attempt failed although the server answered others meanwhile."""
        return self._stuck_since is not None

    def ends(self, away: bool, answers: int) -> bool:
        """Whether an attempt that failed was the last one.

        away: it failed as it does where no server is. answers: how many requests have been answered by now.
        """
        now, alone = self.clock(), answers == self.answers
        self.answers = answers
        if away and alone:
            self._stuck_since = None
            return now - self._began >= self.rule.away
        if self._stuck_since is None:
            self._stuck_since = now
        return now - self._stuck_since >= self.rule.patience
