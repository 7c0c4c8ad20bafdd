"""Waiting for a change on the event loop, as long polls and stages do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Bell:
    """Wakes everybody who waits. No wake-up is lost between a check and `wait` without an await."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.stopped = False
        self.rings = 0
        """How often it rang: who sees it unchanged knows that there is nothing new."""

    def ring(self) -> None:
        """Wake all who wait now."""
        self.rings += 1
        self._event.set()
        self._event = asyncio.Event()

    def stop(self) -> None:
        """Wake all, and let no poll wait any more: the server stops."""
        self.stopped = True
        self.ring()

    def start(self) -> None:
        """Let polls wait again."""
        self.stopped = False

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


class HungUp(Exception):
    """Nobody waits for the answer any more: the connection has ended."""


@contextlib.asynccontextmanager
async def while_connected(receive: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Ends what is inside with HungUp as soon as the connection ends.

    receive: of an ASGI request whose body has been read; what it returns then is the connection's end.
    """
    watching = asyncio.ensure_future(receive())
    inside = True
    try:
        async with asyncio.timeout(None) as limit:

            def hang_up(_: object) -> None:
                # Called a turn of the loop after the connection's end, when what is inside may have ended as well.
                if inside:
                    limit.reschedule(asyncio.get_running_loop().time())

            watching.add_done_callback(hang_up)
            try:
                yield
            finally:
                inside = False
    except TimeoutError:
        if not watching.done():
            raise
        raise HungUp from None
    finally:
        watching.cancel()
