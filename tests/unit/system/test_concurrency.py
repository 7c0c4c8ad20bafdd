"""Nothing is left behind: neither a thread, nor a task, nor an error."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

import pytest

from fedcore.system.concurrency import end, guarded, in_thread


async def test_a_thread_has_ended_when_its_cancellation_shows() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    task = asyncio.create_task(in_thread(work))
    while not begun.is_set():  # noqa: ASYNC110 - what it waits for is a thread
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_what_is_guarded_ends_with_its_guard() -> None:
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def guard() -> NoReturn:
        await asyncio.sleep(0)
        raise ValueError("guard")

    with pytest.raises(ValueError, match="guard"):
        await guarded(work(), guard())
    assert stopped.is_set()


async def test_tasks_get_the_time_that_was_given_and_no_more() -> None:
    finished = asyncio.create_task(asyncio.sleep(0, "done"))
    endless = asyncio.create_task(asyncio.Event().wait())
    failed = asyncio.create_task(in_thread(int, "x"))
    await end(finished, failed, within=60.0)
    assert finished.result() == "done"
    await end(endless, within=0.01)
    assert endless.cancelled()
