"""The parts of GPU acceptance: what hangs is ended, what is missing is named, and a foreign Python is left as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from support.rank_app import alive

from benchmarks import gpu_machine
from benchmarks.common import Figure
from benchmarks.gpu import ALL_SECONDS, LIMITS, finish_within, limit_of, run_within
from benchmarks.gpu_found import Found

HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_part_that_hangs_ends_with_all_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert finish_within([sys.executable, "-c", HANGS], 3.0, log, dict(os.environ)) is None
    child, deadline = int(log.read_text()), time.monotonic() + 60
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_status_of_a_part_is_its_own(tmp_path: Path) -> None:
    assert finish_within([sys.executable, "-c", "raise SystemExit(3)"], 60.0, tmp_path / "log", {}) == 3


FAILS_THEN = """
import pathlib, sys
pathlib.Path(sys.argv[1]).write_text(sys.argv[2])
raise RuntimeError("no memory")
"""
HANGS_THEN = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text('{"notes": ["half of it"]}')
print('''
tests/gpu/test_a.py::test_one PASSED [ 10%]
tests/gpu/test_a.py::test_two[cpu] FAILED [ 20%]
tests/gpu/test_a.py::test_three PASSED [ 30%]
tests/gpu/test_b.py::test_hangs
tests/gpu/test_b.py::test_beside_it
[gw1] [ 40%] PASSED tests/gpu/test_b.py::test_beside_it
''', flush=True)
time.sleep(600)
"""


def test_what_a_part_found_before_it_failed_is_kept(tmp_path: Path) -> None:
    first, out = Found(tmp_path / "first.json"), tmp_path / "found.json"
    first.figure("speed", 2.0, aim=1.0, at_least=True)
    first.note("half of it")
    command = [sys.executable, "-c", FAILS_THEN, str(out), (tmp_path / "first.json").read_text()]
    ended = run_within(command, 300.0, tmp_path / "log", dict(os.environ), out)
    assert not ended.fine
    assert ended.outcome == "exit status 1: RuntimeError: no memory"
    assert [Figure(**figure).name for figure in ended.found["figures"]] == ["speed"]
    assert ended.found["notes"] == ["half of it"]


def test_tests_that_are_ended_say_how_far_they_came(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    ended = run_within([sys.executable, "-c", HANGS_THEN, str(out)], 5.0, tmp_path / "log", dict(os.environ), out)
    assert ended.outcome == "not done within 5 s; 3 tests had passed"
    assert ended.notes == ("ended in tests/gpu/test_b.py::test_hangs",)
    assert ended.found == {"notes": ["half of it"]}


def test_tests_that_fail_are_named(tmp_path: Path) -> None:
    said = "\n".join([*(f"FAILED tests/gpu/test_a.py::test_{one} - x" for one in range(12)), "= 12 failed, 3 passed ="])
    ended = run_within(
        [sys.executable, "-c", f"print({said!r}); raise SystemExit(1)"], 60.0, tmp_path / "log", {}, tmp_path / "found"
    )
    assert ended.outcome == "exit status 1: 12 failed, 3 passed"
    assert ended.notes[0] == "FAILED tests/gpu/test_a.py::test_0 - x"
    assert ended.notes[-1] == "and 2 more"


def test_no_part_takes_the_time_of_those_after_it() -> None:
    """Whether all take all that they may, or nothing."""
    parts, left = list(LIMITS), ALL_SECONDS
    for number, part in enumerate(parts, start=1):
        limit = limit_of(part, parts[number:], left)
        assert LIMITS[part][0] <= limit <= LIMITS[part][1]
        left -= limit
    assert left >= 0
    assert limit_of("memory", [], 500.0) == LIMITS["memory"][1]


def test_nothing_is_missing_where_tests_run() -> None:
    assert gpu_machine.missing() == []


def test_what_is_missing_comes_with_the_versions_of_the_lock(monkeypatch) -> None:
    monkeypatch.setattr(gpu_machine, "is_installed", lambda name: name not in ("flwr", "pytest", "torch"))
    assert gpu_machine.missing() == ["flwr", "torch", "pytest"]
    said = gpu_machine.help_without(["flwr", "torch", "pytest"])
    assert " flwr==1.41" in said
    assert " pytest==" in said
    assert "torch==" not in said, "the lock's torch is for processors"


def test_an_environment_beside_a_python_has_its_packages_and_our_commands(tmp_path: Path) -> None:
    made = gpu_machine.beside(tmp_path / "beside")
    asked = "import torch, sys, fedcore; from importlib.metadata import entry_points as e; "
    asked += "print(sys.prefix, sorted(one.name for one in e(group='fedcore.commands')))"
    ended = subprocess.run([made, "-c", asked], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(str(tmp_path))
    assert "'client'" in ended.stdout
    assert "'server'" in ended.stdout
