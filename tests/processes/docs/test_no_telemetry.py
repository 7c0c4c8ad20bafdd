"""What docs/faq.md promises: nothing of fedcore asks another host for anything, and it tells its libraries not to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.tiny import TINY

WATCHED = """
import sys

def watch(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        assert arguments[0] in (None, "localhost", "127.0.0.1", "::1"), (event, arguments)
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        assert arguments[1][0] in ("127.0.0.1", "::1"), (event, arguments)

sys.addaudithook(watch)
from fedcore.cli.main import app
app(sys.argv[1:], standalone_mode=False)
from flwr.supercore import telemetry
assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
print("nobody was asked")
"""


def test_a_run_asks_no_other_host(tmp_path: Path) -> None:
    """Flower reports by default, and its variable is on: the run of an app tells nobody all the same."""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, "simulate", str(TINY), "--clients", "3", "--engine", "inline"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nobody was asked" in done.stdout
