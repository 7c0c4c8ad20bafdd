"""What all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# Before anything imports flwr, which would otherwise report to its makers.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
# Many processes at once, with tiny models: a thread pool in each of them would only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell without job control has its background jobs ignore Ctrl-C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes, or its making, says what else the machine does, and nothing about the code. Whoever runs
# the tests under a profile of its own keeps it.
if hypothesis.settings.get_current_profile_name() == "default":
    hypothesis.settings.register_profile(
        "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real data sets; the test is skipped where there is none."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FEDCORE_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("needs FEDCORE_DATA, the folder with the real data sets")
    return folder
