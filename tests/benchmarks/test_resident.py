"""Peaks of memory, measured on a real process."""

import subprocess
import sys
import time

import pytest

from benchmarks.resident import ChildrenPeak, peak_resident_bytes, reset_peak, resident_bytes
from fedcore.errors import EnvironmentFailure

MIB = 1 << 20
# Says when it has held 64 MiB and let go of it, and then waits for its end.
CHILD = "b = b'x' * (64 << 20); del b; print('ready', flush=True); input()"


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_peak_outlives_what_made_it_until_it_is_reset(child):
    assert peak_resident_bytes(child) - resident_bytes(child) > 48 * MIB
    reset_peak(child)
    assert peak_resident_bytes(child) - resident_bytes(child) < 16 * MIB


def test_the_children_of_a_process_are_watched():
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with ChildrenPeak(process.pid) as children:
            process.stdout.readline()
            deadline = time.monotonic() + 100
            while children.peak < 64 * MIB and time.monotonic() < deadline:
                time.sleep(0.01)
            process.communicate(b"\n")
        assert children.peak > 64 * MIB


def test_a_process_that_is_gone_is_an_error():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    for look in (resident_bytes, peak_resident_bytes, reset_peak):
        with pytest.raises(EnvironmentFailure, match=str(process.pid)):
            look(process.pid)
