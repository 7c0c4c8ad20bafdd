"""The steps of a process that trains, counted where they are made, so that its agent sees a rank that is stuck.

Engines count each batch that a loop gets from them, and each part of one that they work through. A loop of your own
over other batches counts by `counted_steps`; one that does not is never taken to be stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

Item = TypeVar("Item")


@dataclass(slots=True)
class StepCounter:
    """Steps of one process; another thread may read it.

    steps: batches that loops have got since `reset`.
    parts: micro-batches, and backward passes of your own loops, so that a long step shows that it goes on.
    """

    steps: int = 0
    parts: int = 0
    _loops: set[object] = field(default_factory=set)

    @property
    def in_loop(self) -> bool:
        """Whether a loop over batches is under way, so that another step is due."""
        return bool(self._loops)

    def reset(self) -> None:
        """A new task begins; what an earlier one left of its loops is forgotten."""
        self.steps = self.parts = 0
        self._loops.clear()

    def note_part(self) -> None:
        """A part of a step begins."""
        self.parts += 1

    def over(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The same batches, each of them a step; the loop lasts until they end, or nobody uses the iterator."""
        loop = object()
        self._loops.add(loop)
        try:
            for batch in batches:
                self.steps += 1
                yield batch
        finally:
            self._loops.discard(loop)


STEPS: Final = StepCounter()
"""Those of this process."""
counted_steps: Final = STEPS.over
