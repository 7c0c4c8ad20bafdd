"""Tests of one module that run side by side, each in a thread: most of their time they wait for processes.

A test decorated with `side_by_side` gets its first argument from a lane, which a thread of its own opens, hands to one
test after the other, and closes. The module, or its conftest.py, has a fixture `lanes` that says what a lane is.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

Lane = Callable[[], Any]
"""What a test gets; called anew before each of them."""
OpenLane = Callable[[Path], AbstractContextManager[Lane]]


@contextmanager
def fresh_folders(folder: Path) -> Iterator[Lane]:
    """The lanes of tests that share nothing: each test gets an empty folder."""
    numbers = itertools.count(1)

    def fresh() -> Path:
        own = folder / str(next(numbers))
        own.mkdir()
        return own

    yield fresh


def side_by_side(test: Callable[..., None]) -> Callable[..., None]:
    """Run `test` beside the others of its module. All arguments but the first come from its parameters.

    Where pytest would run the test, it waits for how the test ended in its thread.
    """

    @functools.wraps(test)
    def outcome(lanes: Lanes, request: pytest.FixtureRequest, **values: Any) -> None:
        del values  # the thread has got them
        lanes.outcome(request.node.nodeid)

    _, *others = inspect.signature(test).parameters.values()
    own = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("lanes", "request")]
    outcome.__signature__ = inspect.Signature([*own, *others])  # type: ignore[attr-defined]
    return outcome


class Lanes:
    """Threads that take the chosen tests of one module in their order, and how each test ended."""

    def __init__(self, open_lane: OpenLane, tests: list[pytest.Function]) -> None:
        self._open = open_lane
        self._ends: dict[str, Future[None]] = {test.nodeid: Future() for test in tests}
        self._waiting: queue.SimpleQueue[pytest.Function] = queue.SimpleQueue()
        for test in tests:
            self._waiting.put(test)
        self._broken: BaseException | None = None

    @classmethod
    @contextmanager
    def opened(cls, request: pytest.FixtureRequest, open_lane: OpenLane, *, count: int) -> Iterator[Lanes]:
        """At most `count` lanes for those tests of the requesting module that this session runs."""
        module = request.node
        chosen = [item for item in request.session.items if item.getparent(pytest.Module) is module]
        tests = [item for item in chosen if isinstance(item, pytest.Function) and "lanes" in item.fixturenames]
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        lanes = cls(open_lane, tests)
        folders = [factory.mktemp("lane") for _ in range(min(count, len(tests)))]
        threads = [threading.Thread(target=lanes._serve, args=(folder,)) for folder in folders]
        for thread in threads:
            thread.start()
        try:
            yield lanes
        finally:
            lanes._drain()
            for thread in threads:
                thread.join()
        if lanes._broken is not None:
            raise lanes._broken

    def outcome(self, nodeid: str) -> None:
        """Wait for the end of a test; raises what it raised."""
        self._ends[nodeid].result()

    def _serve(self, folder: Path) -> None:
        """One lane, from its opening to its end; the parent of all processes that its tests start is this thread."""
        try:
            with self._open(folder) as lane:
                while (test := self._next()) is not None:
                    self._run(test, lane)
        except BaseException as error:
            self._broken = error
            while (test := self._next()) is not None:
                self._ends[test.nodeid].set_exception(error)

    def _run(self, test: pytest.Function, lane: Lane) -> None:
        end = self._ends[test.nodeid]
        values = test.callspec.params if hasattr(test, "callspec") else {}
        try:
            inspect.unwrap(test.function)(lane(), **values)
        except BaseException as error:
            end.set_exception(error)
        else:
            end.set_result(None)

    def _next(self) -> pytest.Function | None:
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def _drain(self) -> None:
        """No further test begins: the session has been broken off, or all have ended."""
        while self._next() is not None:
            pass
