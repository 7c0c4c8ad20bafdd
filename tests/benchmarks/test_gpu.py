"""The parts of GPU acceptance: what hangs is ended, what is missing is named, and a foreign Python is left as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from support.rank_app import alive

from benchmarks import gpu_machine
from benchmarks.gpu import _within

HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_part_that_hangs_ends_with_all_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert _within([sys.executable, "-c", HANGS], 3.0, log, dict(os.environ)) is None
    child, deadline = int(log.read_text()), time.monotonic() + 60
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_status_of_a_part_is_its_own(tmp_path: Path) -> None:
    assert _within([sys.executable, "-c", "raise SystemExit(3)"], 60.0, tmp_path / "log", {}) == 3


def test_nothing_is_missing_where_tests_run() -> None:
    assert gpu_machine.missing() == []


def test_what_is_missing_comes_with_the_versions_of_the_lock(monkeypatch) -> None:
    monkeypatch.setattr(gpu_machine, "_installed", lambda name: name not in ("flwr", "pytest", "torch"))
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
