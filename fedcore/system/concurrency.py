"""Running things at the same time so that nothing is left behind: neither a thread, nor a task, nor an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

Result = TypeVar("Result")


async def in_thread(function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    """Run a blocking function in a thread; when cancelled, wait for it, since it uses what would be torn down."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **named))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def guarded(work: Coroutine[Any, Any, Result], guard: Coroutine[Any, Any, NoReturn]) -> Result:
    """The result of `work`, while `guard` runs as well; the failure of either ends both before it is raised."""
    working, guarding = asyncio.ensure_future(work), asyncio.ensure_future(guard)
    try:
        done, _ = await asyncio.wait((working, guarding), return_when=asyncio.FIRST_COMPLETED)
        if guarding in done:
            guarding.result()
        return working.result()
    finally:
        await end(working, guarding)


async def end(*work: asyncio.Future[Any], within: float = 0.0) -> None:
    """Give tasks `within` seconds to come to their end, cancel those that have not, and wait for them.

    What they raised is of no interest any more.
    """
    if within and work:
        await asyncio.wait(work, timeout=within)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)


@asynccontextmanager
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks that all end with the block; the first failure ends the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
