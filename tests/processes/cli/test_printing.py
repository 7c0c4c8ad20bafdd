"""What a command prints goes to a full disk, to a pipe that nobody reads any more, or nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from fedcore.errors import EnvironmentFailure
from fedcore.state import ModelState
from fedcore.training.models import digits_mlp

DIGITS = Path(__file__).parents[3] / "examples" / "digits"


def fedcore(*words: str | Path, stdout: IO[bytes] | int | None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedcore", *map(str, words)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
        timeout=600,
        check=False,
    )


def check_one_line(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == EnvironmentFailure.exit_code
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: standard output cannot be written (No space left on device)")


@pytest.mark.parametrize("words", [("--help",), ("new", "--list"), ("new", "--list", "--json"), ("--version",)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line_and_a_status(words: tuple[str, ...], unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        check_one_line(fedcore(*words, stdout=full, PYTHONUNBUFFERED=unbuffered))


def test_answers_for_a_full_disk(tmp_path: Path) -> None:
    """Many of them, so that the buffer is written before the command ends."""
    model, rows = tmp_path / "model.safetensors", tmp_path / "digits.csv"
    ModelState.from_arrays({name: one.numpy().copy() for name, one in digits_mlp().state_dict().items()}).save(model)
    np.savetxt(rows, np.zeros((2000, 64)), fmt="%d", delimiter=",")
    with Path("/dev/full").open("wb") as full:
        done = fedcore("predict", model, "--app", DIGITS, "--input", rows, "--json", stdout=full)
    assert done.returncode == EnvironmentFailure.exit_code
    assert "Traceback" not in done.stderr
    assert "standard output cannot be written" in done.stderr.splitlines()[-1]


def test_a_reader_that_has_seen_enough_is_told_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = fedcore("new", "--list", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_no_output_at_all() -> None:
    closed = ["sh", "-c", 'exec "$0" -m fedcore new --list --json >&-', sys.executable]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
