"""Health of the storage that a server depends on: its database, its disk and its object store."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from fedcore.errors import FedcoreError

log = logging.getLogger("fedcore.server")

STUCK_SECONDS: Final = 20.0
"""A check that takes longer counts as failed: the file system of a lost machine never answers."""


class StorageHealth:
    """Result of the last check of each storage.

    clock
        Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._troubles: dict[str, str] = {}
        self._trying: tuple[str, float] | None = None

    @property
    def trouble(self) -> str:
        """What cannot be written or read, and why; empty if all is well."""
        troubles = dict(self._troubles)
        if self._trying is not None and self._clock() - self._trying[1] > STUCK_SECONDS:
            troubles[self._trying[0]] = f"no answer for {self._clock() - self._trying[1]:.0f} s"
        return "; ".join(f"{what}: {why}" for what, why in troubles.items())

    async def attempt(self, what: str, step: Callable[[], Awaitable[None]]) -> Exception | None:
        """Run one check and remember its error, which is also returned."""
        self._trying = (what, self._clock())
        try:
            await step()
        except Exception as error:
            why = str(error) if isinstance(error, FedcoreError) else f"{type(error).__name__}: {error}"
            if self._troubles.get(what) != why:
                log.warning("%s: %s", what, why)
            self._troubles[what] = why
            return error
        finally:
            self._trying = None
        if self._troubles.pop(what, ""):
            log.info("%s: can be written and read again", what)
        return None
