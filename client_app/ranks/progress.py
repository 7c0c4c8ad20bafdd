"""How far ranks are with a task, as they report it, and which of them is stuck.

A rank is stuck if a loop over batches is under way in it and no step has begun for too long. One whose app counts no
steps is never stuck: for it only the task's deadline counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from client_app.ranks.failures import RANK_HUNG, RankFailed
from client_app.ranks.messages import Progress

LOOK_SECONDS: Final = 1.0
"""Between two looks at what ranks have reported."""
_SILENT_SECONDS: Final = 10.0
"""Without a report, of which one is due each second: the process does not run."""


@dataclass(slots=True)
class RankProgress:
    """One rank: its last report, and seconds in which this agent ran and got no other step, or no report at all."""

    steps: int = 0
    parts: int = 0
    in_loop: bool = False
    still: float = 0.0
    silent: float = 0.0

    def take(self, report: Progress) -> None:
        """A report has come."""
        if (report.steps, report.parts) != (self.steps, self.parts) or not report.in_loop:
            self.still = 0.0
        self.steps, self.parts, self.in_loop, self.silent = report.steps, report.parts, report.in_loop, 0.0


OnProgress = Callable[[int, float], None]
"""Gets the steps of the rank that has made the fewest, and the seconds since its last one."""


@dataclass(slots=True)
class TaskProgress:
    """The ranks that report to one agent, during one task.

    seconds: without a step, after which a rank is stuck; 0 for never.
    tell: gets the progress at each look.
    """

    seconds: float
    tell: OnProgress
    ranks: dict[int, RankProgress] = field(default_factory=dict, init=False)
    answers: dict[int, float] = field(default_factory=dict, init=False)
    """When each rank answered, by the monotonic clock."""
    _last: float = field(default_factory=lambda: asyncio.get_running_loop().time(), init=False)

    def expect(self, numbers: Iterable[int]) -> None:
        """These ranks begin the task: one that stops before its first report is as silent as any other."""
        for number in numbers:
            self.ranks.setdefault(number, RankProgress())

    def take(self, rank: int, report: Progress) -> None:
        """A rank has reported."""
        self.expect([rank])
        self.ranks[rank].take(report)

    def note_answer(self, rank: int) -> None:
        """A rank has answered: its part is over."""
        self.answers[rank] = time.monotonic()

    def look(self) -> None:
        """Raise RankFailed if a rank is stuck. To be called every LOOK_SECONDS.

        What the agent itself is late, as after it was stopped, is no rank's silence.
        """
        now = asyncio.get_running_loop().time()
        passed, self._last = min(now - self._last, 2 * LOOK_SECONDS), now
        for rank in self.ranks.values():
            rank.still += passed
            rank.silent += passed
        slowest = min(self.ranks.values(), key=lambda rank: rank.steps, default=RankProgress())
        if slowest.steps:
            self.tell(slowest.steps, slowest.still)
        if self.seconds and any(rank.in_loop and rank.still >= self.seconds for rank in self.ranks.values()):
            raise RankFailed(self._reason(slowest.steps), RANK_HUNG)

    def _reason(self, fewest: int) -> str:
        """Ranks that wait in a collective are as still as the one that they wait for, which may not run at all."""
        silence = min(_SILENT_SECONDS, self.seconds / 2)
        stopped = [number for number, rank in self.ranks.items() if rank.silent >= silence]
        named = stopped or [number for number, rank in self.ranks.items() if rank.steps == fewest]
        numbers = ", ".join(map(str, sorted(named)))
        why = "; its process does not run" if stopped else ""
        return (
            f"rank{'s' if len(named) > 1 else ''} {numbers} made no step for {self.seconds:.0f} s after step {fewest}"
            f"{why} (progress-seconds of client.toml)"
        )
