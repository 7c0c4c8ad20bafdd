"""Waiting for a change on the event loop: the base of long polls and of stages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Bell:
    """Wakes everybody who waits. No wake-up is lost between a check and `wait` without an await."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.stopped = False

    def ring(self) -> None:
        """Wake all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    def stop(self) -> None:
        """Wake all, and let no poll wait any more: the server stops."""
        self.stopped = True
        self.ring()

    async def wait(self, seconds: float) -> None:
        """Return at the next ring, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._event.wait()


async def poll(bell: Bell, probe: Callable[[], T | None], seconds: float) -> T | None:
    """Ask `probe` after every ring until it has an answer; None after `seconds`.

    Whatever `probe` raises ends the poll.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        answer = probe()
        left = deadline - asyncio.get_running_loop().time()
        if answer is not None or left <= 0 or bell.stopped:
            return answer
        await bell.wait(left)
