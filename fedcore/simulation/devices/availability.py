"""When a simulated device is there: connected, charged, and free to train."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final, Protocol

NEVER: Final = math.inf


class Availability(Protocol):
    """When one device is there; times are virtual seconds since the run began."""

    def until(self, at: float) -> float | None:
        """To when it stays, of a device that is there at `at`; infinity for ever. None if it is away."""
        ...

    def next_there(self, at: float) -> float:
        """The first time from `at` on at which it is there; infinity where it does not come back."""
        ...


@dataclass(frozen=True, slots=True)
class Always:
    """It never leaves."""

    def until(self, at: float) -> float | None:
        return NEVER

    def next_there(self, at: float) -> float:
        return at


@dataclass(frozen=True, slots=True)
class Intervals:
    """Known beforehand, from a trace.

    spans: (from, to) in order, without overlaps. repeat: seconds after which all begins again, such as a day; 0 for a
    trace that is over after its last interval.
    """

    spans: tuple[tuple[float, float], ...]
    repeat: float = 0.0

    def until(self, at: float) -> float | None:
        turn, rest = divmod(at, self.repeat) if self.repeat else (0.0, at)
        end_of_span = next((end for start, end in self.spans if start <= rest < end), None)
        if end_of_span is None:
            return None
        if self.repeat and end_of_span == self.repeat and self.spans[0][0] == 0.0:  # no gap before the next turn
            if len(self.spans) == 1:
                return NEVER
            end_of_span += self.spans[0][1]
        return turn * self.repeat + end_of_span

    def next_there(self, at: float) -> float:
        turn, rest = divmod(at, self.repeat) if self.repeat else (0.0, at)
        for start, end in self.spans:
            if rest < end:
                return turn * self.repeat + max(start, rest)
        return (turn + 1) * self.repeat + self.spans[0][0] if self.repeat else NEVER


@dataclass(slots=True)
class ComesAndGoes:
    """A device that is there and away in turn, each for an exponentially distributed time (a two-state Markov chain).

    share: of the time that it is there, in the long run, 0 to 1. seconds: the mean of one stretch there. seed: what is
    drawn from it is the same whenever it is asked for.
    """

    share: float
    seconds: float
    seed: str
    _random: random.Random = field(init=False)
    _there_first: bool = field(init=False)
    _changes: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - when a simulated device is there is no secret
        self._there_first = self._random.random() < self.share

    def until(self, at: float) -> float | None:
        stretch = self._stretch(at)
        return self._changes[stretch] if self._is_there(stretch) else None

    def next_there(self, at: float) -> float:
        stretch = self._stretch(at)
        return at if self._is_there(stretch) else self._changes[stretch]

    def _is_there(self, stretch: int) -> bool:
        return self._there_first == (stretch % 2 == 0)

    def _stretch(self, at: float) -> int:
        """How many changes there were by then; the next one is drawn as well."""
        away = self.seconds * (1 - self.share) / self.share
        while not self._changes or self._changes[-1] <= at:
            mean = self.seconds if self._is_there(len(self._changes)) else away
            last = self._changes[-1] if self._changes else 0.0
            self._changes.append(last + self._random.expovariate(1 / mean))
        return bisect_right(self._changes, at)
