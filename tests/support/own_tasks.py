"""The tasks that a test starts itself: each has to be over before what it uses is closed, and when the test ends.

One that was cancelled is not over yet: it may be anywhere in the code that it runs, and what it uses is closed there
and then.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

from fedcore.system.concurrency import end

_TESTS = str(Path(__file__).parents[1])
_ASYNCIO = str(Path(asyncio.__file__).parent)


class OwnTasks:
    """A task factory that remembers what a test's task, or one that it started, starts from within `tests`.

    What the server's tasks start there is theirs: they stop a `ScriptedApp` as they would a process.
    """

    def __init__(self) -> None:
        self._test = asyncio.current_task()
        self._started: set[asyncio.Task[Any]] = set()

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        here = inspect.currentframe()
        assert here is not None
        task, starter = asyncio.Task(work, loop=loop, **named), asyncio.current_task(loop)
        if (starter is self._test or starter in self._started) and _place(here.f_back).startswith(_TESTS):
            self._started.add(task)
            task.add_done_callback(self._started.discard)
        return task

    async def check(self, before: str) -> None:
        """Fail if one is not over. A task of the test that asks is left alone: it closes what is its own."""
        if asyncio.current_task() is not self._test:
            return
        left = [task for task in self._started if not task.done()]
        await end(*left)
        assert not left, f"tasks that the test started are not over before {before}: {left}"


async def nothing_left(before: str) -> None:
    """Fail if a task that the running test started is not over."""
    factory = asyncio.get_running_loop().get_task_factory()
    if isinstance(factory, OwnTasks):
        await factory.check(before)


def leaving_nothing(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """The test, which fails if a task that it started is not over in the end."""

    @functools.wraps(test)
    async def checked(*arguments: Any, **named: Any) -> None:
        asyncio.get_running_loop().set_task_factory(OwnTasks())
        await test(*arguments, **named)
        await nothing_left("its end")

    return checked


def _place(frame: FrameType | None) -> str:
    """The file from which asyncio was asked for a task."""
    while frame is not None and frame.f_code.co_filename.startswith(_ASYNCIO):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename
