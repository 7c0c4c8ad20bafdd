"""Writing what must be written: tried again for as long as the database or the disk refuses, and never in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from fedcore.errors import FedcoreError

T = TypeVar("T")
log = logging.getLogger("fedcore.server")

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 10.0


def pauses() -> Iterator[float]:
    """Seconds to wait before each further try, each twice the one before, up to ten."""
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


def reason_of(error: Exception) -> str:
    """An error in one line: those of fedcore as they are, others by their type and their first line."""
    if isinstance(error, FedcoreError):
        return str(error)
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}"


async def persist(step: Callable[[], Awaitable[T]], *, what: str, report: Callable[[str], None]) -> T:
    """The result of `step`, which is tried until it succeeds, whatever it raises: a run ends with it.

    Within an exchange `server_app.exchanges.receipts.retry_until_stored` repeats a write, but if storage refuses it
    alone: an exchange may fail.

    what
        Is not done yet, for a person.
    report
        Gets why, and "" once it is done.
    """
    last, waits = "", pauses()
    while True:
        try:
            result = await step()
        except Exception as error:
            trouble = f"{what}: {reason_of(error)}"
            if trouble != last:
                log.error("%s; it is tried again", trouble)
                last = trouble
            report(trouble)
        else:
            if last:
                log.info("that is over: %s", last)
                report("")
            return result
        await asyncio.sleep(next(waits))
