"""The virtual clock: seconds that pass on the simulated devices, whatever this machine takes for them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedcore.errors import UsageError

Item = TypeVar("Item")


@dataclass(slots=True)
class VirtualClock:
    """now: virtual seconds since the run began."""

    now: float = 0.0

    def advance_to(self, time: float) -> None:
        """Set the time; raises UsageError for a time that is past, or that never comes."""
        if not self.now <= time < float("inf"):
            raise UsageError(f"the virtual clock shows {self.now:g} s and cannot be set to {time:g} s")
        self.now = time


@dataclass(slots=True)
class EventQueue(Generic[Item]):
    """What will happen, in the order of its time; what happens at the same time in the order in which it was put in."""

    _heap: list[tuple[float, int, Item]] = field(default_factory=list)
    _count: int = 0

    def push(self, time: float, item: Item) -> None:
        """Something will happen at a time, in virtual seconds; what never happens (infinity) is left out."""
        if time < float("inf"):
            heapq.heappush(self._heap, (time, self._count, item))
            self._count += 1

    def pop(self) -> tuple[float, Item]:
        """The next event and its time; raises IndexError if there is none."""
        time, _, item = heapq.heappop(self._heap)
        return time, item

    @property
    def next_time(self) -> float:
        """When the next event happens; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def __len__(self) -> int:
        return len(self._heap)
