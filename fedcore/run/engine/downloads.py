"""Which model clients get: the strategy's own, or, with `download-bits` = 16, a chain of 16-bit differences.

With differences a model that the strategy hands over is rounded to the last *sent* model plus a difference in bfloat16
(`fedcore.state.difference`); what is announced, and what all clients train from, is that sum. The mean of their changes
is added to the strategy's own model, which is never rounded. The chain of sent models follows from the strategy's
models alone: a ServerApp that is started again hands all of them over again, and so does one that another server leads
on, and that gives the same models.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(slots=True)
class ModelChain(Generic[S]):
    """The chain of one run, in one life of its ServerApp.

    last
        The model that was sent last, as files or in memory.
    """

    last: S | None = field(default=None, init=False)
    _strategys: str = field(default="", init=False)
    """SHA-256 of the strategy's model that `last` was made from."""

    async def send(self, sha256: str, make: Callable[[S | None], Awaitable[S]]) -> S:
        """What clients get of a model of the strategy; for the same model the same again.

        sha256
            Of the strategy's model.
        make
            Makes what is sent: out of the last one and a difference if the two can differ (`fedcore.state.can_differ`),
            else the strategy's model alone.
        """
        if self.last is None or sha256 != self._strategys:
            self.last = await make(self.last)
            self._strategys = sha256
        return self.last
