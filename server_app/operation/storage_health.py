"""Health of the storage that a server depends on: its database, its disk and its object store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from fedcore.errors import FedcoreError
from fedcore.system.concurrency import end

log = logging.getLogger("fedcore.server")

STUCK_SECONDS: Final = 15.0
"""A check that takes longer counts as failed: the file system of a lost machine never answers."""
_STEP_SECONDS: Final = 0.25
"""The time is counted in such steps: of one in which this process itself stood still no more than that counts."""
_NOT_YET: Final = "was not checked yet"


class StorageHealth:
    """Result of the last check of each storage.

    stuck_seconds
        How long a check may take.
    """

    def __init__(self, stuck_seconds: float = STUCK_SECONDS) -> None:
        self.stuck_seconds = stuck_seconds
        self._troubles: dict[str, str] = {}

    @property
    def trouble(self) -> str:
        """What cannot be written or read, and why; empty if all is well."""
        return "; ".join(f"{what}: {why}" for what, why in self._troubles.items())

    def expect(self, names: Iterable[str]) -> None:
        """Nothing is well before its first check."""
        self._troubles |= dict.fromkeys(names, _NOT_YET)

    async def check(self, what: str, step: Callable[[], Awaitable[None]], *, slow: bool = False) -> Exception | None:
        """Run one check and remember its error, which is also returned.

        One that is stuck is trouble from then on, and is waited for: another would be stuck as well.

        slow
            Whether it may take as long as it takes.
        """
        running = asyncio.ensure_future(step())
        try:
            if not slow and not await self._is_in_time(running):
                self._note(what, f"no answer for {self.stuck_seconds:.0f} s")
            await asyncio.wait({running})
        finally:
            await end(running)
        error = running.exception()
        if isinstance(error, Exception):
            self._note(what, str(error) if isinstance(error, FedcoreError) else f"{type(error).__name__}: {error}")
            return error
        if self._troubles.pop(what, _NOT_YET) != _NOT_YET:
            log.info("%s: can be written and read again", what)
        return None

    async def _is_in_time(self, running: asyncio.Future[None]) -> bool:
        """Whether a check ends before it counts as stuck."""
        left = self.stuck_seconds
        while left > 0 and not running.done():
            step = min(left, _STEP_SECONDS)
            await asyncio.wait({running}, timeout=step)
            left -= step
        return running.done()

    def _note(self, what: str, why: str) -> None:
        if self._troubles.get(what) != why:
            log.warning("%s: %s", what, why)
        self._troubles[what] = why
