"""Worker processes: what they report, how they end, and that nothing outlives whom it should not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.raising import raises

from fedcore.comparison.workers.processes import Ended, ReportSink, WorkerReport, Workers
from fedcore.errors import EnvironmentFailure

# The fork server may need long to import torch.

SECONDS = 60.0
"""What may take a moment may take long on a busy machine."""


class Line(WorkerReport):
    value: int
    text: str


class Here(WorkerReport):
    pid: int
    port: int = 0
    child: int = 0


def talk(report: ReportSink, count: int, listener: socket.socket) -> None:
    for number in range(count):
        report(Line(value=number, text="x" * 100_000))
    sys.stdout.write(f"printed {os.environ['COLOUR']}\n")
    report(Here(port=listener.getsockname()[1], pid=os.getpid()))


def fail(report: ReportSink) -> None:
    report(Line(value=0, text="before"))
    raise ValueError("no such thing")


def leave(report: ReportSink) -> None:
    sys.exit(0)


def stay(report: ReportSink) -> None:
    """With a child that holds the pipe, as a data loader does."""
    child = os.fork()
    if child:
        report(Here(pid=os.getpid(), child=child))
    signal.pause()


def test_reports_and_endings_come_back(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener, Workers(tmp_path, {"COLOUR": "blue"}) as workers:
        workers.start("talker", talk, 5, listener)
        workers.start("failing", fail)
        workers.start("leaving", leave)
        workers.start("staying", stay)
        found: dict[str, list[Any]] = {}
        for name, report in workers.events(silence=SECONDS):
            found.setdefault(name, []).append(report)
            if name == "staying" and isinstance(report, Here):
                workers.kill(name)
        port = listener.getsockname()[1]
    assert [report.value for report in found["talker"] if isinstance(report, Line)] == list(range(5))
    assert found["talker"][-2].port == port
    assert found["talker"][-1] == Ended(exitcode=0)
    assert (tmp_path / "logs" / "talker.log").read_text() == "printed blue\n"
    assert [type(report) for report in found["failing"]] == [Line, Ended]
    ending = found["failing"][-1]
    assert (ending.exitcode, ending.reason) == (1, "ValueError: no such thing")
    assert "in fail" in ending.traceback
    assert "in fail" in (tmp_path / "logs" / "failing.log").read_text()
    assert found["leaving"][-1].reason == "SystemExit: 0"
    assert found["staying"][-1].exitcode == -signal.SIGKILL
    assert found["staying"][-1].reason == "ended by SIGKILL"
    wait_until_gone(found["staying"][0].pid, found["staying"][0].child)


def test_silence_ends_the_waiting_and_leaving_ends_the_workers(tmp_path: Path):
    with Workers(tmp_path) as workers:
        workers.start("staying", stay)
        here = next(workers.events(silence=SECONDS)).report
        with raises(EnvironmentFailure, check="silence", match="staying"):
            next(workers.events(silence=1.0))
        assert workers.living == {"staying"}
    assert not workers.living
    wait_until_gone(here.pid, here.child)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals):
    code = (
        "from pathlib import Path; import sys\n"
        "from multiprocessing import get_context\n"
        "from fedcore.comparison.workers.processes import Workers\n"
        "from tests.processes.comparison.test_workers import stay\n"
        "if __name__ == '__main__':\n"
        " get_context('forkserver').set_forkserver_preload([])  # it would take seconds, for nothing here\n"
        " with Workers(Path(sys.argv[1])) as workers:\n"
        "  workers.start('staying', stay)\n"
        "  for event in workers.events(silence=60): print(event.report.pid, flush=True)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(code)
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait(SECONDS)
    wait_until_gone(pid)


def wait_until_gone(*pids: int) -> None:
    """Whoever reaps them may take a moment; a zombie has ended."""
    deadline = time.monotonic() + SECONDS
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process stayed"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before the file was opened, or before it was read
        return False
