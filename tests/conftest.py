"""What all tests share: the layers, the profiles of hypothesis, the folder with the real data sets.

The first folder of a test's path is its layer and its marker (CONTRIBUTING.md). A test of `unit` starts no process;
with `--test-seconds` the closing lines name the quick ones that took longer than that.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import inspect
import multiprocessing.process
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.nodeid import NodeId
from support.own_tasks import leaving_nothing

TESTS = Path(__file__).parent
FIRST_LAYER = ("unit", "architecture")
GPU = "gpu"
"""The layer whose tests use a GPU where there is one."""
HANGS_AFTER = 1800
"""Seconds after which a test that starts processes hangs; a quick one does after those of pyproject.toml."""
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
"""Audit events of a process that starts another one."""
TOOK = "processor seconds"
"""The property of a quick test that took more of them than `--test-seconds`."""
LATE = ("dp_accounting", "matplotlib.pyplot", "pandas")
"""What the code imports when it is needed. Whichever test needs it first is not slow for that."""
LONGEST = (
    "integration/test_kills.py",
    "integration/test_comparison_ended.py",
    "processes/docs/test_pages.py::test_a_page[docs/simulation.md]",
    "integration/test_commands.py",
    "integration/test_refusals.py",
    "integration/test_comparisons.py",
    "integration/test_replicas.py",
    "integration/test_engines.py",
    "integration/test_groups.py",
    "processes/docs/test_first_pages.py",
    "processes/docs/test_operating_pages.py",
    "processes/docs/test_site.py",
    "integration/test_flower_agreement.py",
    "processes/docs/test_pages.py::test_a_page[docs/tracking.md]",
    "processes/docs/test_pages.py::test_a_page[docs/howto/resuming.md]",
    "processes/client_app/test_elastic.py",
    "processes/api/test_notebooks.py",
    "processes/cli/test_demo.py",
    "processes/docs/test_pages.py",
    "integration",
    "processes",
)
"""What takes a minute or more, and the folders where most are: they begin first, so that none is left for the end."""

# Before anything imports flwr, which would otherwise report to its makers.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
# Many processes at once, with tiny models: a thread pool in each of them would only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where bytecode may not be written, every process compiles all that it imports: six seconds of torch's each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell without job control has its background jobs ignore Ctrl-C, and nohup the end of the terminal: so would every
# process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes, or its making, says what else the machine does, and nothing about the code.
UNHURRIED: Any = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
# The same few examples in every run, so that what fails once fails always; some new ones in each run; and many.
hypothesis.settings.register_profile("quick", max_examples=25, derandomize=True, database=None, **UNHURRIED)
hypothesis.settings.register_profile("fresh", max_examples=50, **UNHURRIED)
hypothesis.settings.register_profile("thorough", max_examples=250, **UNHURRIED)
# Whoever runs the tests under a profile of its own keeps it.
if hypothesis.settings.get_current_profile_name() in ("default", "ci"):
    hypothesis.settings.load_profile("quick")

_unit_tests: list[str] = []
"""The one that runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--test-seconds", type=float, help="name the quick tests that take more processor seconds")


def pytest_configure(config: pytest.Config) -> None:
    """What is tested everywhere is tested on the processor, also where there is a GPU; `tests/gpu` runs by itself."""
    hidden = not all(GPU in Path(argument.partition("::")[0]).absolute().parts for argument in config.args)
    if hidden:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # When it is imported Triton makes its functions, for a device or for its interpreter, which runs on the processor.
    if hidden or not Path("/dev/nvidiactl").exists():
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(layer := item.path.relative_to(TESTS).parts[0])
    if layer not in FIRST_LAYER and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(HANGS_AFTER))
    if _shares(item):
        item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(TESTS))))
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = leaving_nothing(item.obj)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    if config.getoption("loadgroup", False):
        for item in items:
            _group(item)


def _group(item: pytest.Item) -> None:
    """Name a test's group where xdist's scheduler reads it, behind its id.

    xdist 3.8 writes it where pytest since 9.2 no longer looks, and every worker then makes each shared fixture anew
    (github.com/pytest-dev/pytest-xdist/issues/1386).
    """
    mark = item.get_closest_marker("xdist_group")
    if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
        item._id = NodeId.parse(f"{item.nodeid}@{mark.args[0]}")  # noqa: SLF001 - pytest's


def _shares(item: pytest.Item) -> bool:
    """Whether a fixture is made once for it and for others: one worker then runs all of its file (`loadgroup`)."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # noqa: SLF001 - pytest's
    return any(one.scope != "function" and one.baseid.startswith("tests/") for found in fixtures for one in found)


def _place(item: pytest.Item) -> int:
    found = (number for number, name in enumerate(LONGEST) if item.nodeid.startswith(f"tests/{name}"))
    return next(found, len(LONGEST))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Flower collects garbage for each message that it reads: a second where it goes through all that is imported."""
    if session.config.option.test_seconds:
        for name in LATE:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _unit_tests.extend([item.nodeid] if item.get_closest_marker("unit") else [])
    try:
        return (yield)
    finally:
        _unit_tests.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    began = time.process_time()
    try:
        return (yield)
    finally:
        taken, limit = time.process_time() - began, item.config.option.test_seconds
        if limit and taken > limit and item.path.relative_to(TESTS).parts[0] in FIRST_LAYER:
            item.user_properties.append((TOOK, taken))  # reports take these with them from a worker


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How long a test takes depends on the machine as well: it is said, and fails nothing."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    calls = [report for report in reports if getattr(report, "when", None) == "call"]
    slow = [(value, call.nodeid) for call in calls for name, value in call.user_properties if name == TOOK]
    if slow:
        limit = config.option.test_seconds
        terminalreporter.section(f"quick tests that took more than {limit:g} s of the processor")
        for taken, test in sorted(slow, reverse=True):
            terminalreporter.line(f"{taken:.1f} s {test}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """pytest-timeout ends one thing for each test: where that was the test, its teardown may hang as well."""
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _refuse_in_unit_tests(event: str, _arguments: tuple[object, ...]) -> None:
    if _unit_tests and event in STARTS:
        pytest.fail(f"{_unit_tests[0]} starts a process ({event}): its place is tests/processes")


def _start(process: multiprocessing.process.BaseProcess) -> None:
    """Of a fork server nothing is audited."""
    _refuse_in_unit_tests("os.spawn", ())
    _really_start(process)


sys.addaudithook(_refuse_in_unit_tests)
_really_start = multiprocessing.process.BaseProcess.start
multiprocessing.process.BaseProcess.start = _start  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets; the test is skipped where there is none."""
    beside = TESTS.parents[1] / "shared" / "data"
    folder = Path(os.environ.get("FEDCORE_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("needs FEDCORE_DATA, the folder with the real data sets")
    return folder
