"""A warm process that runs tests in a copy of the repository, one mutated file at a time.

    python benchmarks/mutation_worker.py FOLDER

Reads one JSON object a line from standard input and answers each with one on standard output (`Request`, `Answer`).
It imports everything that tests need except the code under test, and forks for each run, so that a run begins with
collecting the tests. The copy's code comes first on the path; a run that imported it from elsewhere is an error.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn, TypedDict

import hypothesis
import pytest

WARM = ("asyncio", "hypothesis.stateful", "numpy.testing", "numpy.random", "scipy.stats", "unittest.mock")
CIPHERS = ("hazmat.primitives.asymmetric.ed25519", "hazmat.primitives.asymmetric.x25519", "hazmat.primitives.ciphers")
MEMORY_LIMIT = 6 << 30
"""Bytes of address space of a run: a mutant that never stops allocating fails, and leaves the machine alone."""
TIMED_OUT = "from pytest-timeout"
EVERYWHERE = ""
"""Stands for all tests: what runs while modules are imported, or for a fixture that several tests share."""


class Request(TypedDict):
    """What to run. file: in the copy, replaced by `source` before the run and put back after it; none if empty.

    package: whose functions are recorded. arguments: files or folders for pytest. tests: ids in the order of running,
    all that were collected if empty. limit: seconds for all of it; test_limit: for one test. record: tell which tests
    reach which functions.
    """

    package: str
    file: str
    source: str
    arguments: list[str]
    tests: list[str]
    limit: float
    test_limit: float
    record: bool


class Answer(TypedDict):
    """How it went. status: pytest's exit status; None when the run was ended, or ended itself.

    test: the first to fail, or what ended the run. seconds: of each test. reached: "file:function" -> tests that
    execute it. origin: where the package came from.
    """

    status: int | None
    hung: bool
    test: str
    seconds: dict[str, float]
    reached: dict[str, list[str]]
    origin: str


class Recorder:
    """A plugin of pytest: sorts the tests, keeps the first failure, times, and what each test reaches."""

    def __init__(self, folder: Path, request: Request) -> None:
        self.failed = ""
        self.hung = False
        self.seconds: dict[str, float] = defaultdict(float)
        self.reached: dict[str, set[str]] = defaultdict(set)
        self._order = {test: place for place, test in enumerate(request["tests"])}
        self._folder = folder
        self._package = folder / request["package"]
        self._records = request["record"]
        self._test = EVERYWHERE
        self._seen: set[CodeType] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the wanted tests, in the order given."""
        if self._order:
            items[:] = sorted((i for i in items if i.nodeid in self._order), key=lambda i: self._order[i.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first failure, of a fixture as well, and the time taken."""
        self.seconds[report.nodeid] += report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid
            self.hung = TIMED_OUT in report.longreprtext

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot even be imported."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """What is called from here on is called for this test."""
        if self._records:
            _forget_cached(self._folder)
        self._enter(item.nodeid)
        try:
            return (yield)
        finally:
            self._enter(EVERYWHERE)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """A shared fixture runs within one test, on behalf of others."""
        test = self._test
        if fixturedef.scope != "function":
            self._enter(EVERYWHERE)
        try:
            return (yield)
        finally:
            self._enter(test)

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """For sys.setprofile: every function of the package, by its file and outermost name."""
        code = frame.f_code
        if event == "call" and code not in self._seen:
            self._seen.add(code)
            path = Path(code.co_filename)
            if path.is_relative_to(self._package):
                outermost = code.co_qualname.partition(".<locals>")[0]
                self.reached[f"{path.relative_to(self._package).as_posix()}:{outermost}"].add(self._test)

    def _enter(self, test: str) -> None:
        self._test = test
        self._seen.clear()


def main() -> int:
    """Serve requests until standard input ends."""
    folder = Path(sys.argv[1]).resolve()
    os.chdir(folder)
    sys.path[0] = str(folder)
    for name in (*WARM, *(f"cryptography.{part}" for part in CIPHERS)):
        importlib.import_module(name)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    # Fixed examples, so that a mutant's fate is no matter of luck; and no time spent on making a failure small.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutants",
        max_examples=250,
        derandomize=True,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("mutants")
    gc.freeze()
    for line in sys.stdin:
        request: Request = json.loads(line)
        with _replaced(folder, request):
            answer = run_forked(folder, request)
        print(json.dumps(answer), flush=True)
    return 0


@contextlib.contextmanager
def _replaced(folder: Path, request: Request) -> Iterator[None]:
    """The mutated file in place. Its bytecode goes: its time stamp could be that of another mutant of equal length."""
    if not request["file"]:
        yield
        return
    path = folder / request["package"] / request["file"]
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    before = path.read_bytes()
    path.write_text(request["source"], encoding="utf-8")
    try:
        yield
    finally:
        path.write_bytes(before)


def run_forked(folder: Path, request: Request) -> Answer:
    """Run in a child, and end it and all that it started at the limit."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        carry_out(folder, request, writer)
    os.close(writer)
    # The child does the same; neither may be the first to need it.
    os.setpgid(child, child)
    with os.fdopen(reader, "rb") as answers:
        text, hung = _read_until(answers.fileno(), time.monotonic() + request["limit"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if text and not hung:
        answer: Answer = json.loads(text)
        return answer
    return _no_answer("the limit" if hung else "a signal", hung=hung)


def _no_answer(cause: str, *, hung: bool = False) -> Answer:
    return Answer(status=None, hung=hung, test=cause, seconds={}, reached={}, origin="")


def _read_until(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """Everything up to the end, and whether the deadline came first."""
    parts: list[bytes] = []
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b"".join(parts), False
        parts.append(part)
    return b"".join(parts), True


def carry_out(folder: Path, request: Request, writer: int) -> NoReturn:
    """The child: no way out but the last line, so that nothing of the parent's runs twice."""
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        # Only the run before all mutants leaves bytecode behind, of the tests above all.
        sys.dont_write_bytecode = bool(request["file"])
        try:
            answer = _tested(folder, request)
        except BaseException as broken:  # also SystemExit, and whatever else a mutant may raise at import
            answer = _no_answer(f"{type(broken).__name__}: {broken}")
        with os.fdopen(writer, "w", encoding="utf-8") as answers:
            json.dump(answer, answers)
    finally:
        os._exit(0)


def _tested(folder: Path, request: Request) -> Answer:
    recorder = Recorder(folder, request)
    if request["record"]:
        threading.setprofile(recorder.profile)
        sys.setprofile(recorder.profile)
    # hypothesis is warm already, which pytest would warn of: its assertions cannot be rewritten any more.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += ["-o", f"timeout={request['test_limit']}"]
    options += ["-x"] * bool(request["file"])
    status = pytest.main([*options, *request["arguments"]], plugins=[recorder])
    sys.setprofile(None)
    package = sys.modules.get(request["package"].replace("/", "."))
    return Answer(
        status=int(status),
        hung=recorder.hung,
        test=recorder.failed,
        seconds=dict(recorder.seconds),
        reached={function: sorted(tests) for function, tests in recorder.reached.items()},
        origin=getattr(package, "__file__", None) or "",
    )


def _forget_cached(folder: Path) -> None:
    """Empty the caches of all functions in the copy, the tests' too, so that the next test calls what it depends on."""
    # Paths compared as texts: this runs before each test, over thousands of modules.
    inside = f"{folder}{os.sep}"
    modules = [one for one in list(sys.modules.values()) if str(getattr(one, "__file__", "")).startswith(inside)]
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    for owner in (*modules, *classes):
        for value in list(vars(owner).values()):
            forget = getattr(value, "cache_clear", None)
            if callable(forget):
                forget()


if __name__ == "__main__":
    sys.exit(main())
